use super::*;
use crate::sandbox::fake::{FakeRuntime, sandbox};

#[tokio::test]
async fn a_list_names_every_sandbox_and_the_pods_among_them() {
    let runtime = FakeRuntime::started();
    let (one, two) = (sandbox("a", "uid-1", 3), sandbox("b", "uid-2", 0));
    let stopped = Sandbox { ready: false, ..sandbox("c", "uid-2", 1) };
    for sandbox in [&one, &two, &stopped, &sandbox("not-of-a-pod", "", 0)] {
        runtime.put(sandbox);
    }
    let client = runtime.client();
    assert_eq!(client.list().await.unwrap(), [one, two.clone(), stopped.clone()]);
    assert_eq!(client.list_pod("uid-2").await.unwrap(), [two, stopped]);
}

#[tokio::test]
async fn the_namespace_of_a_sandbox_is_found() {
    let runtime = FakeRuntime::started();
    runtime.put(&sandbox("a", "uid-1", 0));
    let info = r#"{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/var/run/netns/x"}]}}}"#;
    runtime.set(|state| info.clone_into(&mut state.info));
    let client = runtime.client();
    assert_eq!(client.netns_path("a").await.unwrap(), Some("/run/netns/x".into()));
}

#[tokio::test]
async fn only_containers_of_the_sandbox_that_run_or_ran_have_started() {
    let runtime = FakeRuntime::started();
    let container = |state: v1::ContainerState| v1::Container { id: "c".into(), state: state.into() };
    let made = ("a".to_owned(), container(v1::ContainerState::ContainerCreated));
    let other = ("b".to_owned(), container(v1::ContainerState::ContainerRunning));
    runtime.set(|state| state.containers = vec![made, other]);
    let client = runtime.client();
    assert!(!client.has_started("a").await.unwrap() && client.has_started("b").await.unwrap());
    let over = ("a".to_owned(), container(v1::ContainerState::ContainerExited));
    runtime.set(|state| state.containers.push(over));
    assert!(client.has_started("a").await.unwrap());
}

#[tokio::test]
async fn a_sandbox_that_is_gone_is_told_from_a_runtime_that_is() {
    let mut runtime = FakeRuntime::started();
    let client = runtime.client();
    let gone = client.netns_path("a").await.unwrap_err();
    assert!(matches!(&gone, CriError::Gone(id) if id == "a"), "{gone}");
    runtime.crash().await;
    let down = client.netns_path("a").await.unwrap_err();
    assert!(matches!(&down, CriError::Call { .. }), "{down}");
}

#[tokio::test]
async fn a_runtime_that_hangs_is_left_after_the_deadline() {
    let runtime = FakeRuntime::started();
    runtime.set(|state| state.delay = Duration::from_secs(60));
    let client = Runtime::new(&runtime.socket(), Duration::from_millis(50)).unwrap();
    let late = client.list().await.unwrap_err();
    assert_eq!(late.to_string(), "cannot list the sandboxes: no answer within 50ms");
}

#[tokio::test]
async fn a_path_that_is_no_socket_is_refused() {
    assert!(matches!(Runtime::new(Path::new("run/x.sock"), DEADLINE), Err(CriError::Socket(_))));
}
