//! Formats: every codec is lossless, none panics, and the bits are those of the manuals.
//!
//! `laws` walks the leaves, tables and absent entries that there are; `raw` throws words at the decoders; `frozen` holds entries that were put
//! together by hand from the manuals; `published` compares with other crates' constants; `unit` with the simulated unit's own decoding; `shadow`
//! is about Write=0 with Dirty=1.

mod frozen;
mod laws;
mod published;
mod raw;
mod sample;
mod shadow;
mod unit;

/// Calls a generic function for every format.
#[macro_export]
macro_rules! for_every_format {
    ($function:ident) => {
        for arch in flagstone_pgtable::format::Arch::ALL {
            flagstone_pgtable::with_format!(arch, F => $function::<F>());
        }
    };
}
