//! What a placement is allowed to know and how it decides. No tokio, no HTTP, no API client.

mod applicant;
pub mod cli;
pub mod contract;
pub mod decide;
pub mod explain;
pub mod file;
pub mod model;
pub mod neighbours;
pub mod reason;
pub mod rule;
pub mod score;
pub mod simulate;
pub mod version;
pub mod view;

pub use applicant::Applicant;
pub use decide::{Rejection, admit, decide};
pub use model::{BaseLike, Limits, OperationsPolicy, Policy};
pub use neighbours::may_hinder;
pub use reason::Reason;
pub use score::{Fleet, FleetView, score};
pub use view::BaseView;
