//! The server: keeps tables and answers requests.
//!
//! [`State`] is a whole server without sockets, in two halves: `Tables`, the data plane, and `Coordinator`, the control plane.
//! Requests are defined in [`request`](crate::request) and sockets are handled by the [`listener`](crate::listener); this
//! module knows neither.

mod coordinator;
mod description;
mod entering;
mod entry;
mod geo;
mod saving;
mod shrink;
mod state;
mod status;
mod step;
mod tables;
mod waiting;

pub use coordinator::{
    Absent, Action, ActionKind, Collective, Completed, CutAnswer, Journal, Position, Reduce, StreamPositions,
};
pub(crate) use coordinator::{Contribution, put_parts};
pub use description::{Description, ServerShare, Team};
pub use entry::{Cut, Enter, Entered, ResumePoint, ServerView, agree};
pub(crate) use saving::cut_of;
pub use saving::{Load, Resume};
pub use shrink::Shrink;
pub(crate) use state::Pushing;
pub use state::{Caller, Created, Outcome, State};
pub use status::Status;
pub(crate) use tables::CopyOwner;
