//! The token lives as long as its VMA is borrowed.
use flagstone_pgtable::shadow::ShadowStack;

fn main() {
    let token = {
        let vma = ();
        // SAFETY: none is needed: this does not compile.
        unsafe { ShadowStack::of_mapping(&vma) }
    };
    let _ = token;
}
