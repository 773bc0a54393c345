//! Tries everything that a kind's schema demands, and looks for a rule that nothing has tried.

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, stream};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    bounds::{self, Violation},
    row::{Row, Said, without_numbers},
    schema::{Node, field, locate, nodes},
    server::{Answer, Server},
    specimen::Specimens,
    values,
};

/// Requests at a time.
const AT_ONCE: usize = 8;

/// Tries all rows, then every keyword and value of the schema, and looks for rules that nothing has tried.
pub async fn every_rule<K: DeserializeOwned>(
    server: &Server,
    base: &Value,
    rows: &[Row],
    specimens: &Specimens,
) -> Result<()> {
    let mut said: Vec<Said> = Vec::new();
    for row in rows {
        let (messages, stored) = row.run(server, base).await?;
        said.extend(messages);
        stored.iter().try_for_each(read::<K>)?;
    }
    for object in &specimens.objects {
        let stored = server.create(object).await?.accepted().with_context(|| object.to_string())?;
        read::<K>(&stored)?;
    }
    let nodes = nodes(&server.schema().await?);
    said.extend(every_place::<K>(server, specimens, &nodes).await?);
    let untried: Vec<_> = nodes.iter().flat_map(Node::rules).filter(|rule| !rule.is_in(&said)).collect();
    ensure!(untried.is_empty(), "no refused example has these messages: {untried:#?}");
    Ok(())
}

/// What the server would store, our programs can read.
pub fn read<K: DeserializeOwned>(stored: &Value) -> Result<()> {
    if !stored.is_null() {
        serde_json::from_value::<K>(stored.clone())
            .with_context(|| format!("stored, but unreadable: {stored}"))?;
    }
    Ok(())
}

/// A value at one place of a specimen.
struct Attempt {
    object: Value,
    field: String,
    words: String,
    refused: bool,
}

async fn every_place<K: DeserializeOwned>(
    server: &Server,
    specimens: &Specimens,
    nodes: &[Node],
) -> Result<Vec<Said>> {
    let mut attempts = Vec::new();
    for node in nodes {
        attempts.extend(attempts_at(node, specimens).with_context(|| node.path())?);
    }
    let Some(status) = &specimens.status else { return run(server, "", attempts).await };
    let live = &specimens.objects[0];
    let name = live["metadata"]["name"].as_str().unwrap_or_default();
    server.make(live.clone()).await?;
    let outcome = async {
        read::<K>(&server.edit_status(name, status).await?.accepted()?)?;
        run(server, name, attempts).await
    }
    .await;
    server.remove(name).await?;
    outcome
}

fn attempts_at(node: &Node, specimens: &Specimens) -> Result<Vec<Attempt>> {
    let (object, pointer) = find(node, specimens).context("no specimen has it")?;
    let value = object.pointer(&pointer).cloned().unwrap_or_default();
    let mut violations = bounds::violations(&node.schema, &value)?;
    for rule in node.rules() {
        let known = values::value_rules().into_iter().filter(|(start, _)| rule.words.starts_with(start));
        violations.extend(known.flat_map(|(_, values)| values).map(|bad| Violation {
            bad,
            good: vec![],
            below: rule.below.clone(),
            words: rule.words.clone(),
        }));
    }
    let attempt = |violation: &Violation, value: &Value, refused| {
        let mut object = object.clone();
        if let Some(place) = object.pointer_mut(&pointer) {
            *place = value.clone();
        }
        let field = format!("{}{}", field(&pointer), violation.below).trim_start_matches('.').to_owned();
        Attempt { object, field, words: violation.words.clone(), refused }
    };
    let of = |violation: &Violation| {
        let good = violation.good.iter().map(|value| attempt(violation, value, false)).collect::<Vec<_>>();
        good.into_iter().chain([attempt(violation, &violation.bad, true)]).collect::<Vec<_>>()
    };
    Ok(violations.iter().flat_map(of).collect())
}

/// The first specimen that has the place, with the pointer to it.
fn find(node: &Node, specimens: &Specimens) -> Option<(Value, String)> {
    let status = specimens.status.iter().map(|status| json!({ "status": status }));
    let mut all = specimens.objects.iter().cloned().chain(status);
    all.find_map(|object| locate(&object, &node.place).map(|pointer| (object, pointer)))
}

async fn run(server: &Server, live: &str, attempts: Vec<Attempt>) -> Result<Vec<Said>> {
    let outcomes = stream::iter(attempts).map(|attempt| attempt.run(server, live));
    let outcomes: Vec<Result<Option<Said>>> = outcomes.buffer_unordered(AT_ONCE).collect().await;
    let (mut said, mut wrong) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(message) => said.extend(message),
            Err(error) => wrong.push(format!("\n{error:#}")),
        }
    }
    if !wrong.is_empty() {
        bail!("{} places are wrong:{}", wrong.len(), wrong.concat());
    }
    Ok(said)
}

impl Attempt {
    async fn run(self, server: &Server, live: &str) -> Result<Option<Said>> {
        let context = || {
            format!("{} at {}: {}", if self.refused { "refused" } else { "allowed" }, self.field, self.words)
        };
        let answer = self.ask(server, live).await.with_context(context)?;
        if self.refused {
            let message = answer.refused(&self.field, &self.words).with_context(context)?;
            return Ok(Some((without_numbers(&self.field), message)));
        }
        answer.allows(&self.field, &self.words).with_context(context)?;
        Ok(None)
    }

    async fn ask(&self, server: &Server, live: &str) -> Result<Answer> {
        match self.object.get("status") {
            Some(status) => server.edit_status(live, status).await,
            None => server.create(&self.object).await,
        }
    }
}
