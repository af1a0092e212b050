//! `--observe`: what would be done is logged, once while it is due, and not done.

use super::actor::Actor;
use super::state::Action;

impl Actor {
    /// Logs what was not due the last time.
    pub(super) fn would(&mut self, actions: Vec<Action>) {
        for action in news(&self.would, &actions) {
            tracing::info!(base = %self.spec.node, "would {}", told(action));
        }
        self.would = actions;
    }
}

fn news<'a>(before: &[Action], now: &'a [Action]) -> Vec<&'a Action> {
    now.iter().filter(|action| !before.contains(action)).collect()
}

/// An action in words: no URL, which may carry credentials.
fn told(action: &Action) -> String {
    match action {
        Action::Install { uid, module } => format!("install {} for VPod {uid}", module.id),
        Action::Switch { uid, id, .. } => format!("make {id} the active version for VPod {uid}"),
        Action::Uninstall { id, uid: Some(uid) } => format!("uninstall {id} of VPod {uid}"),
        Action::Uninstall { id, uid: None } => format!("uninstall {id}, which no VPod wants"),
        Action::Adopt { uid, module } => format!("adopt {} for VPod {uid}", module.id),
        Action::Fail { uid, reason, .. } => format!("fail VPod {uid} ({reason})"),
        Action::Removed { uid } => format!("remove VPod {uid}, which is off the base"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::state::{ModuleId, Wanted};

    #[test]
    fn each_action_is_told_once_and_without_its_url() {
        let id = ModuleId { name: "shop".to_owned(), version: "1".to_owned() };
        let install = Action::Install {
            uid: "p".to_owned(),
            module: Wanted {
                container: "shop".to_owned(),
                id: id.clone(),
                url: "https://user:secret@repo/shop.jar".to_owned(),
                args: vec!["--key=secret".to_owned()],
                hash: "h".to_owned(),
            },
        };
        let uninstall = Action::Uninstall { id, uid: None };
        assert_eq!(told(&install), "install shop:1 for VPod p");
        assert_eq!(news(&[], std::slice::from_ref(&install)), [&install]);
        let now = [install.clone(), uninstall.clone()];
        assert_eq!(news(&[install], &now), [&uninstall]);
        assert!(news(&now, &now).is_empty());
    }
}
