//! Reads the API server's audit log: who asked for what, and what was answered.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cluster::Cluster;

/// A finished request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// Who asked.
    pub user: User,
    /// What was asked for; `None` for lists of everything.
    pub object_ref: Option<ObjectRef>,
    /// What was answered.
    pub response_status: Option<Answer>,
    stage: String,
}

/// Who asked.
#[derive(Clone, Debug, Deserialize)]
pub struct User {
    /// Full name, e.g. `system:serviceaccount:fairlead-system:fairlead-agent`.
    pub username: String,
}

/// What was asked for. Absent parts are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Plural, e.g. `pods`.
    pub resource: String,
    /// E.g. `status`.
    pub subresource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty for lists, and for creations with a generated name.
    pub name: String,
}

/// What was answered.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// HTTP status.
    pub code: Option<u16>,
}

impl Request {
    /// Whether it was meant to change something.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether the answer was one of 2xx.
    pub fn succeeded(&self) -> bool {
        let code = self.response_status.as_ref().and_then(|answer| answer.code);
        code.is_some_and(|code| (200..300).contains(&code))
    }
}

/// A place in the audit log.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64);

impl Cluster {
    /// The end of the audit log now.
    pub fn audit_mark(&self) -> Result<Mark> {
        let file = self.layout().audit_log();
        let length =
            std::fs::metadata(&file).with_context(|| format!("looking at {}", file.display()))?.len();
        Ok(Mark(length))
    }

    /// Every request that was finished since `mark` and is wanted by `filter`.
    ///
    /// A watch is finished when it ends; that it was started is not counted.
    pub fn audit_since(&self, mark: Mark, filter: impl Fn(&Request) -> bool) -> Result<Vec<Request>> {
        let path = self.layout().audit_log();
        let mut file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        file.seek(SeekFrom::Start(mark.0))?;
        let mut found = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line?;
            // The last line may be half written.
            let Ok(request) = serde_json::from_str::<Request>(&line) else {
                continue;
            };
            if request.stage == "ResponseComplete" && filter(&request) {
                found.push(request);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_the_server_is_understood() {
        let line = r#"{"kind":"Event","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/pods/b/status",
            "verb":"patch","user":{"username":"system:node:node1","groups":[]},
            "objectRef":{"resource":"pods","namespace":"a","name":"b","subresource":"status"},
            "responseStatus":{"metadata":{},"code":409}}"#;
        let request: Request = serde_json::from_str(line).unwrap();
        assert!(request.is_write());
        assert!(!request.succeeded());
        assert_eq!(request.object_ref.unwrap().subresource, "status");
    }
}
