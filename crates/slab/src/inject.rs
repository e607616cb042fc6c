//! `failslab`: allocations of objects that fail on purpose (S14).
//!
//! The caches that match the pattern go without arrays meanwhile, so that every allocation comes to the slow path, which asks
//! [`FaultPoint::fails`]; those that do not match keep their arrays and are not asked about. The cache that caches' own structures come from never fails.

use flagstone_frames::{FaultAttr, FaultCount, FaultPoint, glob};
use flagstone_host::Host;
use flagstone_types::{AllocError, Gfp};

use crate::cache::{Cache, Name};
use crate::caches::Caches;
use crate::unarrayed::Reasons;

/// The pattern in force, kept with the list of caches and protected by its lock.
pub(crate) type Pattern = Option<Name>;

/// What a cache that is being listed has to be without arrays for.
pub(crate) fn reasons_of<H: Host>(cache: &Cache<H>, pattern: &Pattern) -> u32 {
    match pattern {
        Some(pattern) if matches(cache, pattern.as_str()) => Reasons::INJECT,
        _ => 0,
    }
}

fn matches<H: Host>(cache: &Cache<H>, pattern: &str) -> bool {
    cache.name() != "kmem_cache" && glob(pattern, cache.name())
}

impl<H: Host> Caches<H> {
    /// Lets allocations fail as `attr` says, in the caches whose name matches, those of `kmalloc` included; `None` for none. Allocations with
    /// [`Gfp::NOFAIL`] never fail so. Waits for a grace period: called with no lock held, outside of read-side sections.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] for a pattern of more than 31 bytes; [`AllocError::OutOfMemory`] if the host can not stop its arrays.
    pub fn set_failslab(&self, attr: Option<&FaultAttr<'_>>) -> Result<(), AllocError> {
        if attr.is_some_and(|attr| attr.cache.len() > Name::LONGEST) {
            return Err(AllocError::InvalidArgument);
        }
        self.failslab.disarm();
        let old = core::mem::replace(
            &mut self.lock_list().inject,
            attr.map(|attr| Name::new(attr.cache)),
        );
        if old.is_some() && !self.set_reason(&|_| true, Reasons::INJECT, false) {
            return Err(AllocError::OutOfMemory);
        }
        let Some(attr) = attr else {
            return Ok(());
        };
        if !self.set_reason(&|cache| matches(cache, attr.cache), Reasons::INJECT, true) {
            self.lock_list().inject = None;
            return Err(AllocError::OutOfMemory);
        }
        self.failslab.arm(attr);
        Ok(())
    }

    /// How often an allocation was asked about and failed since [`Caches::set_failslab`].
    #[must_use]
    pub fn failslab(&self) -> FaultCount {
        self.failslab.count()
    }

    /// Whether an allocation that came to the slow path is to fail.
    #[inline]
    pub(crate) fn is_to_fail(&self, cache: &Cache<H>, gfp: Gfp) -> bool {
        cache.reasons.has(Reasons::INJECT)
            && !gfp.contains(Gfp::NOFAIL)
            && FaultPoint::fails(
                &self.failslab,
                self.host(),
                cache.object_size(),
                0,
                gfp.may_sleep(),
            )
    }
}
