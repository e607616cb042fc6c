//! The shared library that `flagstone run` preloads.
//!
//! It exports one marker by which a tool can tell this library from another one.

/// The version of the library, as a C string. A symbol that no other allocator has.
#[unsafe(no_mangle)]
pub static FLAGSTONE_VERSION: [u8; VERSION.len()] = {
    let mut bytes = [0; VERSION.len()];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = VERSION.as_bytes()[i];
        i += 1;
    }
    bytes
};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
