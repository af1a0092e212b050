//! `stowage-policy schema`.

use std::io::Write;

use super::{InputError, Kind, Outcome};
use crate::file;

pub(super) fn run(kind: Kind, out: &mut impl Write) -> Result<Outcome, InputError> {
    let schema = match kind {
        Kind::Placement => file::placement_schema(),
        Kind::Operations => file::operations_schema(),
    };
    writeln!(out, "{:#}", schema.as_value()).map_err(InputError::Write)?;
    Ok(Outcome::Well)
}
