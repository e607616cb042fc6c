//! What the crate itself grants to entries that stay in place is not to be had outside.
use flagstone_pgtable::format::{Access, Leaf};

fn main() {
    let _ = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ).found_in_place();
}
