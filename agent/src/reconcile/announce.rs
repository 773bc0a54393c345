//! Telling the neighbours about new addresses, off the path: at once, after 0.1 s and after 1 s.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairlead_crds::Ip;
use tracing::debug;

use crate::net::{Net, NetError};
use crate::plan::WantedInterface;

const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(900)];

/// Announces interfaces. The namespace is opened anew each time, so that it is not kept alive, and left alone
/// if it is another one by then.
pub(super) fn spawn(net: Arc<dyn Net>, path: PathBuf, cookie: u64, interfaces: Vec<WantedInterface>) {
    tokio::spawn(async move {
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            let (net, path, interfaces) = (Arc::clone(&net), path.clone(), interfaces.clone());
            let sent =
                tokio::task::spawn_blocking(move || announce(net.as_ref(), &path, cookie, &interfaces)).await;
            if !matches!(sent, Ok(Ok(()))) {
                debug!(?sent, "addresses not announced");
                return;
            }
        }
    });
}

fn announce(
    net: &dyn Net,
    path: &std::path::Path,
    cookie: u64,
    interfaces: &[WantedInterface],
) -> Result<(), NetError> {
    let mut result = Ok(());
    net.visit(path, &mut |namespace, session| {
        if namespace.cookie != cookie {
            result = Err(NetError::NamespaceGone(path.display().to_string()));
            return;
        }
        for interface in interfaces {
            let addresses: Vec<Ip> = interface.addresses.iter().map(|address| Ip(address.addr())).collect();
            if let Err(error) = session.announce(&interface.name, interface.mac, &addresses) {
                result = Err(error);
            }
        }
    })?;
    result
}
