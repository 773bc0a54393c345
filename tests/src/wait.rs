//! Bounded waiting. Nothing in this crate sleeps for a fixed time and hopes.

use std::{future::Future, time::Duration};

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout, timeout_at};

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// Of one question to a machine that is busy with other things.
const ANSWER: Duration = Duration::from_secs(40);

/// Asks `check` again and again until it gives a value or `timeout` is over.
///
/// An error of `check` means "not yet" and says why; the last one is in the error of the time-out.
///
/// # Errors
/// When `timeout` is over.
pub async fn until<T, F, Fut>(timeout: Duration, what: &str, mut check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + timeout;
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        match timeout_at(deadline, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(reason)) => last = Some(reason),
            Err(_) => return Err(gave_up(timeout, what, last)),
        }
        if Instant::now() + pause >= deadline {
            return Err(gave_up(timeout, what, last));
        }
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Like [`until`], for what must be so within a few seconds: `pauses` is the time between the questions alone. How long a
/// busy machine takes for the answers, up to 40 s each, does not decide.
///
/// # Errors
/// When the pauses are used up, or a question gets no answer.
pub async fn promptly<T, F, Fut>(pauses: Duration, what: &str, mut check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let mut left = pauses;
    let mut pause = FIRST_PAUSE;
    loop {
        let reason = match timeout(ANSWER, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(reason)) => reason,
            Err(_) => return Err(gave_up(ANSWER, what, None)),
        };
        let Some(rest) = left.checked_sub(pause) else {
            return Err(gave_up(pauses, what, Some(reason)));
        };
        left = rest;
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Like [`until`], for a question of yes or no.
///
/// # Errors
/// When `timeout` is over.
pub async fn until_true<F, Fut>(timeout: Duration, what: &str, mut check: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    until(timeout, what, || {
        let answer = check();
        async move { if answer.await? { Ok(()) } else { Err(anyhow!("not yet")) } }
    })
    .await
}

/// Checks that something stays true for `period`, asking every 100 ms.
///
/// # Errors
/// As soon as `check` fails.
pub async fn stays<F, Fut>(period: Duration, what: &str, mut check: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let started = Instant::now();
    while started.elapsed() < period {
        check().await.map_err(|error| {
            let after = started.elapsed().as_secs_f64();
            error.context(format!("{what}: no longer true after {after:.1} s"))
        })?;
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(LONGEST_PAUSE)
}

fn gave_up(timeout: Duration, what: &str, last: Option<anyhow::Error>) -> anyhow::Error {
    let seconds = timeout.as_secs_f64();
    match last {
        Some(reason) => anyhow!("waited {seconds:.0} s for {what}; at last: {reason:#}"),
        None => anyhow!("waited {seconds:.0} s for {what}; the question itself got no answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_error_of_a_timeout_names_the_last_reason() {
        let mut asked = 0;
        let result: Result<()> = until(Duration::from_secs(3), "the moon", || {
            asked += 1;
            let reason = anyhow!("clouds {asked}");
            async move { Err(reason) }
        })
        .await;
        let message = result.unwrap_err().to_string();
        assert_eq!(message, format!("waited 3 s for the moon; at last: clouds {asked}"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_hangs_is_cut_off() {
        let result = until_true(Duration::from_secs(3), "an answer", std::future::pending).await;
        assert_eq!(
            result.unwrap_err().to_string(),
            "waited 3 s for an answer; the question itself got no answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_take_long_do_not_use_up_a_prompt_wait() {
        let mut asked = 0;
        let answered = promptly(Duration::from_secs(1), "the third answer", || {
            asked += 1;
            let third = asked == 3;
            async move {
                sleep(Duration::from_secs(20)).await;
                if third { Ok(()) } else { Err(anyhow!("not yet")) }
            }
        });
        answered.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_wait_ends_when_its_pauses_are_used_up_or_nothing_answers() {
        let started = Instant::now();
        let never: Result<()> =
            promptly(Duration::from_secs(1), "the moon", || async { Err(anyhow!("clouds")) }).await;
        assert_eq!(never.unwrap_err().to_string(), "waited 1 s for the moon; at last: clouds");
        assert!(started.elapsed() <= Duration::from_secs(1));
        let silent: Result<()> = promptly(Duration::from_secs(1), "an answer", std::future::pending).await;
        assert_eq!(
            silent.unwrap_err().to_string(),
            "waited 40 s for an answer; the question itself got no answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_yes_ends_the_wait() {
        let mut asked = 0;
        until_true(Duration::from_secs(3), "three", || {
            asked += 1;
            let yes = asked == 3;
            async move { Ok(yes) }
        })
        .await
        .unwrap();
        assert_eq!(asked, 3);
    }
}
