//! Page tables: formats of five architectures, walks under split locks, batches of invalidations.
#![no_std]

pub mod format;
pub mod shadow;
