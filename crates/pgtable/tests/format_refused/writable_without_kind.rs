//! A writable leaf is made by saying what kind of mapping it is in.
use flagstone_pgtable::format::{Access, Leaf};
use flagstone_types::PhysAddr;

fn main() {
    let _ = Leaf::new(PhysAddr(0), Access::READ | Access::WRITE);
    let _ = Leaf::kernel(PhysAddr(0), Access::READ).mkwrite();
}
