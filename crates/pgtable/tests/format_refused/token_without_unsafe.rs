//! The token of a shadow stack is made by an unsafe call alone.
use flagstone_pgtable::shadow::{Mapping, ShadowStack};

fn main() {
    let vma = ();
    let _ = Mapping::ShadowStack(ShadowStack::of_mapping(&vma));
}
