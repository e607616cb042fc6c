//! The token has a private field.
use flagstone_pgtable::shadow::{Mapping, ShadowStack};

fn main() {
    let _ = Mapping::ShadowStack(ShadowStack(core::marker::PhantomData));
}
