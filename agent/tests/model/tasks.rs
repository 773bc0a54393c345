//! Futures that the model polls by hand, so that it decides who goes on and can drop anyone at any await.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// One future with what it is called.
pub struct Task {
    pub name: String,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    woken: Arc<Flag>,
}

impl Task {
    pub fn new(name: impl Into<String>, future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { name: name.into(), future: Box::pin(future), woken: Arc::new(Flag(AtomicBool::new(true))) }
    }

    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Acquire)
    }

    /// Lets it run to its next await. True if it has ended.
    pub fn poll(&mut self) -> bool {
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.woken));
        matches!(self.future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(()))
    }
}
