//! Marks can not be written into a leaf.
use flagstone_pgtable::format::{Access, Leaf, Marks};

fn main() {
    let mut leaf = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ);
    leaf.marks = Marks::SHADOW | Marks::DIRTY;
}
