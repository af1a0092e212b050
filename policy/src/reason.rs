//! Why a Pod does not go to a base: a closed list, with stable codes for metrics and constant texts for people.
//!
//! kube-scheduler loops without rest over a Pod whose reasons change from one attempt to the next. So texts hold only
//! words of the Pod itself: no node names, no numbers that move, no `%`.

use std::{fmt, sync::Arc};

use crate::contract::Missing;

/// Why a Pod may not go to a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A module Pod meets an ordinary Node.
    NotAVNode,
    /// Another Pod meets a `VNode`.
    NotAModulePod,
    /// A Pod is half a module Pod.
    IncompleteModulePod {
        /// Container that lacks it.
        container: Option<Arc<str>>,
        /// What is missing.
        missing: Missing,
    },
    /// An annotation of the Pod cannot be read.
    MalformedAnnotation {
        /// Its key.
        annotation: &'static str,
    },
    /// The base has another stack.
    Stack,
    /// The base's version is out of range, or unknown.
    BaseVersion,
    /// The namespace may not use the base.
    Access,
    /// The module's URL is not allowed.
    Artifact {
        /// Container whose image it is.
        container: Arc<str>,
    },
    /// A rule depends on a version that only a `ConfigMap`, Secret or field knows.
    ModuleVersionUnknown {
        /// Name of the module.
        module: Arc<str>,
    },
    /// The base lacks labels that the policy asks for.
    BaseLabels {
        /// Name of the module.
        module: Arc<str>,
    },
    /// The base lacks a capability, or has it in another version.
    MissingCapability {
        /// Name of the module; `None`: the Pod asks for it.
        module: Option<Arc<str>>,
    },
    /// A module that is needed is not active on the base.
    MissingModule {
        /// Name of the module; `None`: the Pod asks for it.
        module: Option<Arc<str>>,
    },
    /// A module that it conflicts with is on the base.
    Conflict {
        /// Name of the module.
        module: Arc<str>,
    },
    /// The agent has not told what is on the base.
    InventoryUnknown,
    /// What the agent told is cut, and the rest matters.
    InventoryTruncated,
    /// The base has this version of the module, or may have it.
    SameModule {
        /// Name of the module.
        module: Arc<str>,
    },
    /// Other versions of the module are still there.
    OtherVersion {
        /// Name of the module.
        module: Arc<str>,
    },
    /// The context path is taken.
    ContextPath {
        /// Name of the module.
        module: Arc<str>,
    },
    /// The base would hold too many modules.
    ModuleLimit,
    /// The declared need does not fit.
    Metaspace,
    /// The base is going away.
    Leaving,
    /// The `VNode` is cordoned, and the Pod does not tolerate that.
    Cordoned,
    /// The base is being healed.
    Overloaded,
    /// The base is silent.
    NotReady,
    /// This version just failed on the base.
    RecentFailure {
        /// Name of the module.
        module: Arc<str>,
    },
}

impl Reason {
    /// Stable code for metrics and documents.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAVNode => "NotAVNode",
            Self::NotAModulePod => "NotAModulePod",
            Self::IncompleteModulePod { .. } => "IncompleteModulePod",
            Self::MalformedAnnotation { .. } => "MalformedAnnotation",
            Self::Stack => "Stack",
            Self::BaseVersion => "BaseVersion",
            Self::Access => "Access",
            Self::Artifact { .. } => "Artifact",
            Self::ModuleVersionUnknown { .. } => "ModuleVersionUnknown",
            Self::BaseLabels { .. } => "BaseLabels",
            Self::MissingCapability { .. } => "MissingCapability",
            Self::MissingModule { .. } => "MissingModule",
            Self::Conflict { .. } => "Conflict",
            Self::InventoryUnknown => "InventoryUnknown",
            Self::InventoryTruncated => "InventoryTruncated",
            Self::SameModule { .. } => "SameModule",
            Self::OtherVersion { .. } => "OtherVersion",
            Self::ContextPath { .. } => "ContextPath",
            Self::ModuleLimit => "ModuleLimit",
            Self::Metaspace => "Metaspace",
            Self::Leaving => "Leaving",
            Self::Cordoned => "Cordoned",
            Self::Overloaded => "Overloaded",
            Self::NotReady => "NotReady",
            Self::RecentFailure { .. } => "RecentFailure",
        }
    }

    /// Whether it may help that other Pods go away. What is not goes into `FailedAndUnresolvableNodes`.
    pub fn resolvable(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::SameModule { .. }
            | Self::OtherVersion { .. }
            | Self::ContextPath { .. }
            | Self::ModuleLimit
            | Self::Metaspace
            | Self::RecentFailure { .. } => true,
            Self::NotAVNode
            | Self::NotAModulePod
            | Self::IncompleteModulePod { .. }
            | Self::MalformedAnnotation { .. }
            | Self::Stack
            | Self::BaseVersion
            | Self::Access
            | Self::Artifact { .. }
            | Self::ModuleVersionUnknown { .. }
            | Self::BaseLabels { .. }
            | Self::MissingCapability { .. }
            | Self::MissingModule { .. }
            | Self::InventoryUnknown
            | Self::InventoryTruncated
            | Self::Leaving
            | Self::Cordoned
            | Self::Overloaded
            | Self::NotReady => false,
        }
    }

    /// One line that a person can act on.
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// One of each kind, in the order of the list; for documents and metrics.
    pub fn examples() -> Vec<Self> {
        let module: Arc<str> = "<module>".into();
        let container: Arc<str> = "<container>".into();
        let some = Some(module.clone());
        vec![
            Self::NotAVNode,
            Self::NotAModulePod,
            Self::IncompleteModulePod { container: Some(container.clone()), missing: Missing::Version },
            Self::IncompleteModulePod { container: Some(container.clone()), missing: Missing::Name },
            Self::IncompleteModulePod { container: None, missing: Missing::Toleration },
            Self::MalformedAnnotation { annotation: "<annotation>" },
            Self::Stack,
            Self::BaseVersion,
            Self::Access,
            Self::Artifact { container },
            Self::ModuleVersionUnknown { module: module.clone() },
            Self::BaseLabels { module: module.clone() },
            Self::MissingCapability { module: some.clone() },
            Self::MissingCapability { module: None },
            Self::MissingModule { module: some },
            Self::MissingModule { module: None },
            Self::Conflict { module: module.clone() },
            Self::InventoryUnknown,
            Self::InventoryTruncated,
            Self::SameModule { module: module.clone() },
            Self::OtherVersion { module: module.clone() },
            Self::ContextPath { module: module.clone() },
            Self::ModuleLimit,
            Self::Metaspace,
            Self::Leaving,
            Self::Cordoned,
            Self::Overloaded,
            Self::NotReady,
            Self::RecentFailure { module },
        ]
    }
}

/// A word of the Pod, at most 63 characters, none of which kube-scheduler or a terminal could take for something else.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | ':' | '<' | '>');
        self.0.chars().take(63).try_for_each(|c| write!(f, "{}", if shown(c) { c } else { '?' }))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAVNode => f.write_str("module Pods run on virtual nodes only"),
            Self::NotAModulePod => f.write_str("a virtual node takes module Pods only"),
            Self::IncompleteModulePod { container: Some(name), missing: Missing::Version } => {
                write!(f, "container {} has no MODULE_VERSION, so this is no module Pod", Word(name))
            }
            Self::IncompleteModulePod { container: Some(name), missing: Missing::Name } => {
                write!(f, "container {} takes MODULE_NAME from elsewhere, it must be written out", Word(name))
            }
            Self::IncompleteModulePod { .. } => {
                f.write_str("the Pod does not tolerate schedule.koupleless.io/virtual-node by key")
            }
            Self::MalformedAnnotation { annotation } => {
                write!(f, "annotation {} of the Pod cannot be read", Word(annotation))
            }
            Self::Stack => f.write_str("the base has another stack"),
            Self::BaseVersion => f.write_str("the base version is outside the wanted range"),
            Self::Access => f.write_str("the policy does not let this namespace use the base"),
            Self::Artifact { container } => {
                write!(f, "the policy does not allow the image URL of container {}", Word(container))
            }
            Self::ModuleVersionUnknown { module } => {
                write!(f, "module version unknown: label the Pod with module.koupleless.io/{}", Word(module))
            }
            Self::BaseLabels { module } => {
                write!(f, "the base lacks labels that module {} needs", Word(module))
            }
            Self::MissingCapability { module: Some(module) } => {
                write!(f, "the base does not provide what module {} needs", Word(module))
            }
            Self::MissingCapability { module: None } => {
                f.write_str("the base does not provide what the Pod requires")
            }
            Self::MissingModule { module: Some(module) } => {
                write!(f, "a module that module {} needs is not active on the base", Word(module))
            }
            Self::MissingModule { module: None } => {
                f.write_str("a module that the Pod requires is not active on the base")
            }
            Self::Conflict { module } => {
                write!(f, "a module on the base conflicts with module {}", Word(module))
            }
            Self::InventoryUnknown => f.write_str("the agent has not told what is on the base"),
            Self::InventoryTruncated => f.write_str("the base holds more modules than the agent could tell"),
            Self::SameModule { module } => {
                write!(f, "the base already has module {} in this version", Word(module))
            }
            Self::OtherVersion { module } => {
                write!(
                    f,
                    "another (in a rollout: the older) version of module {} is still on the base",
                    Word(module)
                )
            }
            Self::ContextPath { module } => {
                write!(f, "the context path of module {} is taken on the base", Word(module))
            }
            Self::ModuleLimit => f.write_str("the base has no room for more modules"),
            Self::Metaspace => f.write_str("the base has too little metaspace left"),
            Self::Leaving => f.write_str("the base is leaving"),
            Self::Cordoned => f.write_str("the virtual node is cordoned"),
            Self::Overloaded => f.write_str("the base is being healed"),
            Self::NotReady => f.write_str("the base is not ready"),
            Self::RecentFailure { module } => {
                write!(f, "this version of module {} just failed on the base", Word(module))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn texts_are_constant_and_harmless() {
        for reason in Reason::examples() {
            let text = reason.text();
            assert!(!text.contains('%') && !text.contains(char::is_numeric), "{text}");
            assert!(text.len() < 100 && !text.ends_with('.'), "{text}");
        }
        let texts: BTreeSet<String> = Reason::examples().iter().map(Reason::text).collect();
        assert_eq!(texts.len(), Reason::examples().len(), "each text tells one thing");
    }

    #[test]
    fn odd_names_do_not_reach_the_text() {
        let odd = format!("a%s\n{}", "x".repeat(100));
        let text = Reason::Conflict { module: odd.as_str().into() }.text();
        assert!(text.ends_with(&format!("module a?s?{}", "x".repeat(59))), "{text}");
    }
}
