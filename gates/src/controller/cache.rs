//! Slim copies of watched objects, and one bell that rings when any of them changes.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use futures::{StreamExt, pin_mut};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_api};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Rings when something changed. Listeners that are busy hear one ring for many.
#[derive(Debug, Clone)]
pub struct Bell(watch::Sender<u64>);

impl Default for Bell {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Bell {
    /// Rings.
    pub fn ring(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Listens from now on.
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Slim copies of the objects of one kind, by `namespace/name` or name.
#[derive(Debug)]
pub struct Cache<T> {
    items: RwLock<HashMap<String, Entry<T>>>,
    ready: AtomicBool,
}

/// A copy and the version that it is of, if the API server's versions are numbers, as those of Kubernetes are.
#[derive(Debug)]
struct Entry<T> {
    version: Option<u64>,
    item: Arc<T>,
}

impl<T> Entry<T> {
    fn of(version: Option<&str>, item: Arc<T>) -> Self {
        Self { version: version.and_then(|version| version.parse().ok()), item }
    }
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { items: RwLock::default(), ready: AtomicBool::new(false) }
    }
}

impl<T> Cache<T> {
    /// Whether the first list is complete.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        items.values().map(|entry| Arc::clone(&entry.item)).collect()
    }

    /// One object.
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        items.get(key).map(|entry| Arc::clone(&entry.item))
    }

    /// Puts the answer to a write where the next look finds it; the watch brings it again. Answers come in any order, and
    /// after the watch: a copy never becomes older.
    pub fn put<K>(&self, object: K)
    where
        K: Resource,
        K::DynamicType: Default,
        T: From<K>,
    {
        let (key, version) = (object.name_any(), object.resource_version());
        self.insert(key, Entry::of(version.as_deref(), Arc::new(object.into())));
    }

    fn insert(&self, key: String, entry: Entry<T>) {
        let mut items = self.items.write().unwrap_or_else(PoisonError::into_inner);
        let is_older =
            |known: &Entry<T>| known.version.zip(entry.version).is_some_and(|(known, new)| new < known);
        if !items.get(&key).is_some_and(is_older) {
            items.insert(key, entry);
        }
    }

    fn remove(&self, key: &str) {
        self.items.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    fn replace(&self, items: HashMap<String, Entry<T>>) {
        *self.items.write().unwrap_or_else(PoisonError::into_inner) = items;
        self.ready.store(true, Ordering::Release);
    }
}

/// Keeps a cache up to date until the token ends. `slim` keeps what is needed of an object, or nothing.
///
/// An object that cannot be read keeps its last copy, so that it does not look deleted; one that never could is absent.
pub async fn follow<K, T>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    slim: fn(K) -> Option<T>,
    cache: Arc<Cache<T>>,
    bell: Bell,
    token: CancellationToken,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default + Clone + Eq + Hash,
{
    let events = watch_api(api, config).default_backoff().take_until(token.cancelled_owned());
    pin_mut!(events);
    let mut fresh = HashMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => take(event, slim, &cache, &mut fresh),
            Err(error) => {
                warn!(kind = %K::kind(&K::DynamicType::default()), %error, "watch failed, trying again");
                continue;
            }
        }
        bell.ring();
    }
}

fn take<K, T>(
    event: Event<DeserializeGuard<K>>,
    slim: fn(K) -> Option<T>,
    cache: &Cache<T>,
    fresh: &mut HashMap<String, Entry<T>>,
) where
    K: Resource,
    K::DynamicType: Default,
{
    match event {
        Event::Init => fresh.clear(),
        Event::InitApply(object) => {
            let (key, item) = split(object, slim, cache);
            fresh.extend(item.map(|item| (key, item)));
        }
        Event::InitDone => cache.replace(std::mem::take(fresh)),
        Event::Apply(object) => match split(object, slim, cache) {
            (key, Some(entry)) => cache.insert(key, entry),
            (key, None) => cache.remove(&key),
        },
        Event::Delete(object) => cache.remove(&key(&object)),
    }
}

fn split<K, T>(
    object: DeserializeGuard<K>,
    slim: fn(K) -> Option<T>,
    cache: &Cache<T>,
) -> (String, Option<Entry<T>>)
where
    K: Resource,
    K::DynamicType: Default,
{
    let (key, version) = (key(&object), object.meta().resource_version.clone());
    let item = match object.0 {
        Ok(object) => slim(object).map(Arc::new),
        Err(error) => {
            debug!(object = key, %error, "object cannot be read");
            cache.get(&key)
        }
    };
    (key, item.map(|item| Entry::of(version.as_deref(), item)))
}

fn key<K: Resource>(object: &DeserializeGuard<K>) -> String
where
    K::DynamicType: Default,
{
    let meta = object.meta();
    match &meta.namespace {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, edit: &Value) -> DeserializeGuard<ConfigMap> {
        let mut object = json!({ "metadata": { "namespace": "ns", "name": name } });
        json_patch::merge(&mut object, edit);
        serde_json::from_value(object).unwrap()
    }

    fn names(cache: &Cache<String>) -> Vec<String> {
        let mut names: Vec<String> = cache.all().iter().map(ToString::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_list_replaces_the_copies_only_when_it_is_complete() {
        let (cache, mut fresh) = (Cache::default(), HashMap::new());
        let slim: fn(ConfigMap) -> Option<String> = |object| object.metadata.name;
        for event in [
            Event::Init,
            Event::InitApply(object("a", &json!({}))),
            Event::InitDone,
            Event::Apply(object("b", &json!({}))),
        ] {
            take(event, slim, &cache, &mut fresh);
        }
        assert!(cache.is_ready());
        assert_eq!(names(&cache), ["a", "b"]);
        take(Event::Init, slim, &cache, &mut fresh);
        take(Event::InitApply(object("c", &json!({}))), slim, &cache, &mut fresh);
        assert_eq!(names(&cache), ["a", "b"], "the new list is not complete");
        take(Event::InitDone, slim, &cache, &mut fresh);
        take(Event::Delete(object("x", &json!({}))), slim, &cache, &mut fresh);
        assert_eq!(names(&cache), ["c"]);
    }

    #[test]
    fn answers_and_events_in_any_order_leave_the_newest() {
        struct Version(Option<String>);
        impl From<ConfigMap> for Version {
            fn from(object: ConfigMap) -> Self {
                Self(object.metadata.resource_version)
            }
        }
        let (cache, mut fresh) = (Cache::<Version>::default(), HashMap::new());
        let answer = |version: &str| -> ConfigMap {
            serde_json::from_value(json!({ "metadata": { "name": "a", "resourceVersion": version } }))
                .unwrap()
        };
        let event = |version: &str| {
            let object = json!({ "metadata": { "name": "a", "resourceVersion": version } });
            Event::Apply(serde_json::from_value::<DeserializeGuard<ConfigMap>>(object).unwrap())
        };
        let known = || cache.get("a").unwrap().0.clone().unwrap();
        cache.put(answer("9"));
        take(event("8"), |object| Some(object.into()), &cache, &mut fresh);
        assert_eq!(known(), "9");
        take(event("10"), |object| Some(object.into()), &cache, &mut fresh);
        cache.put(answer("9"));
        assert_eq!(known(), "10");
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_last_copy() {
        let (cache, mut fresh) = (Cache::default(), HashMap::new());
        let slim: fn(ConfigMap) -> Option<String> = |object| object.metadata.name;
        let bad = json!({ "data": 7 });
        take(Event::Apply(object("a", &json!({}))), slim, &cache, &mut fresh);
        for event in [
            Event::Apply(object("a", &bad)),
            Event::Init,
            Event::InitApply(object("a", &bad)),
            Event::InitDone,
        ] {
            take(event, slim, &cache, &mut fresh);
        }
        assert_eq!(names(&cache), ["a"]);
    }
}
