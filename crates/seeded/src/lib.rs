//! Page frames.
