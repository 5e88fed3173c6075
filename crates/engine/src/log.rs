//! What `SOFTHCA_LOG` says: the name of the variable, and the sentence for a value that is no filter. The library and the `softhca` program each
//! have a log of their own, and say the same.

use std::ffi::OsStr;
use std::fmt;

/// The environment variable that says what is logged.
pub const VARIABLE: &str = "SOFTHCA_LOG";

/// What is said of a value that is no filter.
#[must_use]
pub fn refused(value: &OsStr, why: &dyn fmt::Display) -> String {
    format!(
        "{VARIABLE}={value:?} is no filter ({why}): it takes error, warn, info, debug or trace, or modules with a level as in \
         engine=debug,softhca::fault=info"
    )
}
