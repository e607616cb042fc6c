//! Where what is mapped lies in the kernel's half of every address space.
//!
//! ```text
//!   0xffff_8000_0000_0000   physical memory, 512 GiB (direct.rs)
//!   0xffff_c000_0000_0000   mappings that come and go
//!   0xffff_fe00_0000_0000   gates and entry areas of CPUs, at random places of 512 GiB (entry_area.rs)
//!   0xffff_fe80_0000_0000   one page of code for user mode (access.rs)
//!   0xffff_ffff_8000_0000   the image
//! ```
//!
//! Each has an entry of its own in the table of level 4, and with five levels all of them are below the last entry of level 5.

/// Bytes below one entry of the table of level 4.
pub(crate) const SPAN: usize = 512 << 30;
/// The region of mappings that come and go.
pub(crate) const PRIVATE: usize = 0xffff_c000_0000_0000;
/// The region of the entry areas.
pub(crate) const ENTRY_AREAS: usize = 0xffff_fe00_0000_0000;
/// The page that user mode runs.
pub(crate) const USER_PAGE: usize = ENTRY_AREAS + SPAN;
/// The image.
pub(crate) const IMAGE: usize = 0xffff_ffff_8000_0000;
