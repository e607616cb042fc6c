//! Giving idle memory back to its owner: by age, by amount, in few calls.
//!
//! A zone knows the least number of free pages with contents during an interval; so many were certainly idle all the time. At the
//! end of the interval that number, less what is to be kept, goes back: largest blocks first, coldest first, free neighbours in
//! one call. A range that is being given back is out of the lists and marked isolated meanwhile, so no lock is held over the call and
//! nobody else owns its frames (M6).

use core::sync::atomic::Ordering;

use crate::Frames;
use crate::buddy::{End, linked};
use crate::page::{PageKind, State};
use crate::zone::{Locked, ZoneState};
use flagstone_host::{Event, Host};
use flagstone_types::{MigrateType, Nanos, Pfn, PfnRange};

/// How idle memory goes back to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasePolicy {
    /// Free pages with contents that are kept however long they are idle, on the whole machine.
    pub keep: usize,
    /// How long pages must have been free.
    pub interval: Nanos,
    /// How many times the owner may be called in one [`Frames::release_idle`].
    pub max_calls: usize,
}

/// What [`Frames::release_idle`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Pages whose memory went back.
    pub pages: usize,
    /// How many times the owner was called.
    pub calls: usize,
}

/// How many blocks of a zone are looked at in one search for cold ones.
const LOOK_AT: usize = 1024;

impl<H: Host> Frames<H> {
    /// Gives idle memory back, where an interval of the policy is complete; otherwise cheap. Takes zone locks, so
    /// no lock that is inside them may be held. Nothing happens on a host that can not release.
    pub fn release_idle(&self, now: Nanos, policy: &ReleasePolicy) -> Released {
        let mut done = Released::default();
        if !H::CAN_RELEASE {
            return done;
        }
        let due = self.next_release.load(Ordering::Relaxed);
        let next = now.0.saturating_add(policy.interval.0);
        if now.0 < due
            || self
                .next_release
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return done;
        }
        let mut keep = policy.keep;
        for zone in self.zones().iter().filter(|zone| zone.managed_pages() > 0) {
            let idle = begin_interval(zone);
            let kept = idle.min(keep);
            keep -= kept;
            release_from(zone, idle - kept, policy.max_calls, &mut done);
        }
        if done.calls > 0 {
            self.host().count(Event::BackingRelease, done.pages as u64);
            self.host()
                .count(Event::BackingReleaseCalls, done.calls as u64);
        }
        done
    }

    /// Gives back everything that is free and has contents, but for `keep` pages, at once: page lists are drained first.
    pub fn release_now(&self, keep: usize) -> Released {
        self.drain_page_lists();
        let policy = ReleasePolicy {
            keep,
            interval: Nanos(0),
            max_calls: usize::MAX,
        };
        let mut done = Released::default();
        if H::CAN_RELEASE {
            let mut keep = policy.keep;
            for zone in self.zones() {
                let free = zone.lock().lists.touched;
                let kept = free.min(keep);
                keep -= kept;
                release_from(zone, free - kept, policy.max_calls, &mut done);
            }
            self.host().count(Event::BackingRelease, done.pages as u64);
            self.host()
                .count(Event::BackingReleaseCalls, done.calls as u64);
        }
        done
    }

    /// Free pages with contents: what [`Frames::release_now`] could give back, without page lists.
    #[must_use]
    pub fn touched_free_count(&self) -> usize {
        self.zones()
            .iter()
            .filter(|z| z.managed_pages() > 0)
            .map(|zone| zone.lock().lists.touched)
            .sum()
    }
}

/// Ends the zone's interval and begins the next. Returns how many pages were idle during it.
fn begin_interval<H: Host>(zone: &ZoneState<H>) -> usize {
    let mut locked = zone.lock();
    let now = locked.lists.touched;
    core::mem::replace(&mut locked.lists.least_touched, now)
}

/// Gives back up to `amount` pages with contents.
fn release_from<H: Host>(
    zone: &ZoneState<H>,
    mut amount: usize,
    max_calls: usize,
    done: &mut Released,
) {
    while amount > 0 && done.calls < max_calls {
        let Some((range, touched)) = zone.lock().isolate_cold(amount) else {
            break;
        };
        let released = zone.host.release(range);
        done.calls += 1;
        let mut locked = zone.lock();
        // What still has contents was used last; what has none costs a fault, so it is used last.
        let end = if released { End::Cold } else { End::Hot };
        locked.free_range(range, end);
        if !released {
            // The owner will not take the next one either.
            break;
        }
        done.pages += touched;
        amount -= touched;
    }
    let mut locked = zone.lock();
    locked.lists.least_touched = locked.lists.touched;
}

impl<H: Host> Locked<'_, H> {
    /// Takes cold free blocks with contents, neighbours of each other, out of the lists: at most `amount` pages with contents.
    /// Returns the frames and how many have contents.
    fn isolate_cold(&mut self, amount: usize) -> Option<(PfnRange, usize)> {
        let mut pfn = self.coldest()?;
        let mut total = self.touched_in(pfn);
        while total > amount {
            (pfn, total) = self.halve(pfn);
        }
        let mut range = PfnRange::new(pfn, 1 << self.zone.page(pfn).state().order());
        self.unlink(pfn);
        while let Some(next) = self.neighbour_after(range.end(), amount - total) {
            let pages = 1 << self.zone.page(next).state().order();
            total += self.unlink(next);
            range.pages += pages;
        }
        while let Some((before, size)) = self.free_block_before(range.start) {
            let touched = self.touched_in(before);
            if touched == 0 || touched > amount - total {
                break;
            }
            total += self.unlink(before);
            range = PfnRange::new(before, range.pages + (1 << size));
        }
        self.count_out(range.pages, total);
        // A tail that is nobody's would look lost to `head` and `validate`.
        self.zone.page(range.start).set_state(State::new(
            PageKind::Isolated,
            0,
            MigrateType::Isolate,
            0,
        ));
        self.zone.page(range.start).make_run(range.pages);
        Some((range, total))
    }

    /// The coldest of the largest blocks with contents.
    fn coldest(&self) -> Option<Pfn> {
        let mut left = LOOK_AT;
        for size in (0..=H::MAX_ORDER as usize).rev() {
            for lists in &self.lists.free[..MigrateType::Isolate.index()] {
                let mut next = linked(lists[size].tail);
                while let Some(pfn) = next
                    && left > 0
                {
                    left -= 1;
                    if self.touched_in(pfn) > 0 {
                        return Some(pfn);
                    }
                    next = self.hotter(pfn);
                }
            }
        }
        None
    }

    fn neighbour_after(&self, pfn: Pfn, amount: usize) -> Option<Pfn> {
        self.free_block_at(pfn)?;
        let touched = self.touched_in(pfn);
        (touched > 0 && touched <= amount).then_some(pfn)
    }

    /// Cuts a free block in two and returns one half that has contents: the upper one if it has. The caller takes it
    /// out of the lists, so the halves do not stay buddies.
    fn halve(&mut self, pfn: Pfn) -> (Pfn, usize) {
        let state = self.zone.page(pfn).state();
        let half = state.order() - 1;
        let upper = pfn.add(1 << half);
        let touched = self.unlink(pfn);
        let in_upper = self.touched_half(upper, half, touched);
        self.link(pfn, half, state.migrate(), touched - in_upper, End::Cold);
        self.link(upper, half, state.migrate(), in_upper, End::Cold);
        if in_upper > 0 {
            (upper, in_upper)
        } else {
            (pfn, touched)
        }
    }
}
