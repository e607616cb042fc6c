//! A leaf can not be put together from its parts, nor from another one's.
use flagstone_pgtable::format::{Access, Leaf, Marks};

fn main() {
    let leaf = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ);
    let _ = Leaf {
        marks: Marks::SHADOW | Marks::DIRTY,
        granted: true,
        ..leaf
    };
}
