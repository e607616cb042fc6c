//! Fault injection: requests that fail on purpose, so that what happens then is seen before it happens by itself (S14).
//!
//! ```text
//!   request ── armed? ── nth? ── space left? ── interval ── probability ── stack filter ── fails
//!                no: one load                                                               (times − 1)
//! ```
//!
//! The attributes and their order are those of Linux's fault-injection capabilities. A [`FaultPoint`] is one place that can fail; everything in it is
//! atomic, so it may be armed while requests are under way, which then see some of the old and some of the new attributes.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use flagstone_host::{Host, Level};

/// What a fault point is armed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAttr<'a> {
    /// How many of 100 requests fail, after all other conditions.
    pub probability: u32,
    /// Only every so many-th request that gets this far may fail; 0 and 1 for each.
    pub interval: u32,
    /// At most so many failures; -1 for no limit.
    pub times: i64,
    /// Bytes that are handed out before anything fails.
    pub space: usize,
    /// Exactly this request fails, counted from 1 when it is armed, whatever else is set; 0 for none.
    pub nth: u64,
    /// Where the random numbers begin.
    pub seed: u64,
    /// 0: silent; 1: a message for each failure; 2: with the stack.
    pub verbose: u32,
    /// Only requests with a caller in this range of addresses fail; `(0, 0)` for any.
    pub require: (usize, usize),
    /// Requests with a caller in this range of addresses do not fail; `(0, 0)` for none.
    pub reject: (usize, usize),
    /// How many callers are looked at, at most [`FaultAttr::DEEPEST`].
    pub depth: u32,
    /// Blocks of lower orders do not fail (`fail_page_alloc`).
    pub min_order: u32,
    /// Requests that may sleep do not fail.
    pub ignore_reclaim: bool,
    /// Only caches whose name matches fail (`failslab`); `*` and `?` as in a shell.
    pub cache: &'a str,
}

impl<'a> FaultAttr<'a> {
    /// Callers that can be looked at.
    pub const DEEPEST: u32 = 32;

    /// Nothing fails.
    pub const NEVER: Self = Self {
        probability: 0,
        interval: 1,
        times: 1,
        space: 0,
        nth: 0,
        seed: 0,
        verbose: 1,
        require: (0, 0),
        reject: (0, 0),
        depth: Self::DEEPEST,
        min_order: 0,
        ignore_reclaim: false,
        cache: "*",
    };

    /// Only the `n`-th request fails, silently: for sweeps.
    #[must_use]
    pub const fn nth(n: u64) -> Self {
        Self {
            nth: n,
            verbose: 0,
            ..Self::NEVER
        }
    }

    /// Attributes from text: `name=value` separated by commas, as `probability=10,interval=100,times=-1,space=0,cache=kmalloc-*,stack=0x1000-0x2000`.
    ///
    /// # Errors
    /// What is wrong, with the attribute and its value.
    pub fn parse(text: &'a str) -> Result<Self, BadAttr<'a>> {
        let mut attr = Self::NEVER;
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            let number = || value.parse::<u64>().map_err(|_| BadAttr { name, value });
            let most = |limit: u64| match number() {
                Ok(n) if n <= limit => Ok(n as u32),
                _ => Err(BadAttr { name, value }),
            };
            match name {
                "probability" => attr.probability = most(100)?,
                "interval" => attr.interval = most(u64::from(u32::MAX))?,
                "times" => {
                    attr.times = value
                        .parse()
                        .ok()
                        .filter(|n| *n >= -1)
                        .ok_or(BadAttr { name, value })?;
                }
                "space" => attr.space = number()? as usize,
                "nth" => attr.nth = number()?,
                "seed" => attr.seed = number()?,
                "verbose" => attr.verbose = most(2)?,
                "stack" => attr.require = range(value).ok_or(BadAttr { name, value })?,
                "reject" => attr.reject = range(value).ok_or(BadAttr { name, value })?,
                "depth" => attr.depth = most(u64::from(Self::DEEPEST))?,
                "min-order" => attr.min_order = most(31)?,
                "ignore-gfp-wait" => attr.ignore_reclaim = most(1)? == 1,
                "cache" if !value.is_empty() => attr.cache = value,
                _ => return Err(BadAttr { name, value }),
            }
        }
        Ok(attr)
    }
}

/// `0xLOW-0xHIGH`, the upper end not in it.
fn range(text: &str) -> Option<(usize, usize)> {
    let (low, high) = text.split_once('-')?;
    let hex = |text: &str| usize::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let (low, high) = (hex(low)?, hex(high)?);
    (low < high).then_some((low, high))
}

/// An attribute that is unknown or has a value that it can not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAttr<'a> {
    /// The attribute.
    pub name: &'a str,
    /// Its value.
    pub value: &'a str,
}

impl fmt::Display for BadAttr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value } = self;
        write!(f, "fault injection: {name}={value} is no attribute")
    }
}

/// Whether a name matches a pattern with `*` (anything) and `?` (one byte).
#[must_use]
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                // The last star takes one byte more.
                Some((at, from)) => {
                    p = at + 1;
                    n = from + 1;
                    star = Some((at, n));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// How often a fault point was reached and failed since it was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCount {
    /// Requests that were asked about.
    pub asked: u64,
    /// Of these, those that failed.
    pub failed: u64,
}

/// One place where requests can be made to fail.
#[derive(Debug)]
pub struct FaultPoint {
    name: &'static str,
    armed: AtomicBool,
    probability: AtomicU32,
    interval: AtomicU32,
    times: AtomicI64,
    space: AtomicUsize,
    nth: AtomicU64,
    seed: AtomicU64,
    verbose: AtomicU32,
    require: [AtomicUsize; 2],
    reject: [AtomicUsize; 2],
    depth: AtomicU32,
    min_order: AtomicU32,
    ignore_reclaim: AtomicBool,
    asked: AtomicU64,
    failed: AtomicU64,
    /// Requests that got as far as the interval.
    turns: AtomicU32,
    drawn: AtomicU64,
}

impl FaultPoint {
    /// A point that lets everything pass. `name` is what messages call it.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            armed: AtomicBool::new(false),
            probability: AtomicU32::new(0),
            interval: AtomicU32::new(0),
            times: AtomicI64::new(0),
            space: AtomicUsize::new(0),
            nth: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            verbose: AtomicU32::new(0),
            require: [const { AtomicUsize::new(0) }; 2],
            reject: [const { AtomicUsize::new(0) }; 2],
            depth: AtomicU32::new(0),
            min_order: AtomicU32::new(0),
            ignore_reclaim: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            drawn: AtomicU64::new(0),
        }
    }

    /// Lets requests fail as `attr` says, from now on; counts from 0.
    pub fn arm(&self, attr: &FaultAttr<'_>) {
        self.disarm();
        let relaxed = Ordering::Relaxed;
        self.probability.store(attr.probability, relaxed);
        self.interval.store(attr.interval, relaxed);
        self.times.store(attr.times, relaxed);
        self.space.store(attr.space, relaxed);
        self.nth.store(attr.nth, relaxed);
        self.seed.store(attr.seed, relaxed);
        self.verbose.store(attr.verbose, relaxed);
        for (ours, theirs) in [(&self.require, attr.require), (&self.reject, attr.reject)] {
            ours[0].store(theirs.0, relaxed);
            ours[1].store(theirs.1, relaxed);
        }
        self.depth
            .store(attr.depth.min(FaultAttr::DEEPEST), relaxed);
        self.min_order.store(attr.min_order, relaxed);
        self.ignore_reclaim.store(attr.ignore_reclaim, relaxed);
        self.asked.store(0, relaxed);
        self.failed.store(0, relaxed);
        self.turns.store(0, relaxed);
        self.drawn.store(0, relaxed);
        self.armed.store(true, Ordering::Release);
    }

    /// Lets everything pass. What was counted stays.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    /// Whether anything may fail.
    #[inline]
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// How often it was reached and failed.
    #[must_use]
    pub fn count(&self) -> FaultCount {
        FaultCount {
            asked: self.asked.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    /// Whether a request for `bytes` is to fail. `may_sleep` and `order` are the request's. Takes no lock.
    #[cold]
    #[inline(never)]
    pub fn fails<H: Host>(&self, host: H, bytes: usize, order: u32, may_sleep: bool) -> bool {
        let relaxed = Ordering::Relaxed;
        if !self.armed.load(Ordering::Acquire)
            || order < self.min_order.load(relaxed)
            || may_sleep && self.ignore_reclaim.load(relaxed)
        {
            return false;
        }
        let asked = self.asked.fetch_add(1, relaxed) + 1;
        let nth = self.nth.load(relaxed);
        let mut stack = [0; FaultAttr::DEEPEST as usize];
        if nth != 0 {
            if asked != nth {
                return false;
            }
        } else if !self.is_due(bytes) || !self.admits(self.callers(host, &mut stack)) {
            return false;
        } else if self.times.load(relaxed) != -1 {
            let left = |times: i64| (times > 0).then_some(times - 1);
            if self.times.fetch_update(relaxed, relaxed, left).is_err() {
                return false;
            }
        }
        self.failed.fetch_add(1, relaxed);
        self.tell(host);
        true
    }

    /// The conditions that need no stack.
    fn is_due(&self, bytes: usize) -> bool {
        let relaxed = Ordering::Relaxed;
        let probability = self.probability.load(relaxed);
        if probability == 0 || self.times.load(relaxed) == 0 {
            return false;
        }
        let less = |space: usize| (space > bytes).then(|| space - bytes);
        if self.space.fetch_update(relaxed, relaxed, less).is_ok() {
            return false;
        }
        let interval = self.interval.load(relaxed);
        if interval > 1 && !(self.turns.fetch_add(1, relaxed) + 1).is_multiple_of(interval) {
            return false;
        }
        let drawn = self.drawn.fetch_add(1, relaxed);
        scramble(self.seed.load(relaxed).wrapping_add(drawn)) % 100 < u64::from(probability)
    }

    fn callers<'s, H: Host>(&self, host: H, into: &'s mut [usize]) -> &'s [usize] {
        let filtered = [&self.require[1], &self.reject[1]];
        if filtered.iter().all(|end| end.load(Ordering::Relaxed) == 0) {
            return &[];
        }
        let depth = self.depth.load(Ordering::Relaxed) as usize;
        let n = host.backtrace(&mut into[..depth]);
        &into[..n]
    }

    fn admits(&self, callers: &[usize]) -> bool {
        let within = |range: &[AtomicUsize; 2]| {
            let (low, high) = (
                range[0].load(Ordering::Relaxed),
                range[1].load(Ordering::Relaxed),
            );
            callers.iter().any(|pc| (low..high).contains(pc))
        };
        let required = self.require[1].load(Ordering::Relaxed) != 0;
        !within(&self.reject) && (!required || within(&self.require))
    }

    fn tell<H: Host>(&self, host: H) {
        let verbose = self.verbose.load(Ordering::Relaxed);
        if verbose == 0 {
            return;
        }
        host.log(
            Level::Info,
            format_args!(
                "FAULT_INJECTION: forcing a failure. name {}, interval {}, probability {}, space {}, times {}",
                self.name,
                self.interval.load(Ordering::Relaxed),
                self.probability.load(Ordering::Relaxed),
                self.space.load(Ordering::Relaxed),
                self.times.load(Ordering::Relaxed),
            ),
        );
        if verbose > 1 {
            let mut stack = [0; 16];
            let depth = host.backtrace(&mut stack);
            for address in &stack[..depth] {
                host.log(Level::Info, format_args!(" [<{address:016x}>]"));
            }
        }
    }
}

/// The output of Steele, Lea and Flood's SplitMix64 at position `n`.
const fn scramble(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_seeded::Machine;

    fn failures(attr: &FaultAttr<'_>, requests: usize, bytes: usize) -> std::vec::Vec<usize> {
        let machine = Machine::builder().build();
        let point = FaultPoint::new("test");
        point.arm(attr);
        (0..requests)
            .filter(|_| point.fails(&machine, bytes, 0, true))
            .collect()
    }

    #[test]
    fn each_attribute_does_what_it_says() {
        let always = FaultAttr {
            probability: 100,
            times: -1,
            ..FaultAttr::NEVER
        };
        assert_eq!(failures(&FaultAttr::NEVER, 100, 8), [0; 0]);
        assert_eq!(failures(&always, 5, 8), [0, 1, 2, 3, 4]);
        assert_eq!(failures(&FaultAttr { times: 2, ..always }, 5, 8), [0, 1]);
        let every_third = FaultAttr {
            interval: 3,
            ..always
        };
        assert_eq!(failures(&every_third, 10, 8), [2, 5, 8]);
        let later = FaultAttr {
            space: 24,
            ..always
        };
        assert_eq!(failures(&later, 5, 8), [2, 3, 4]);
        assert_eq!(failures(&FaultAttr::nth(4), 10, 8), [3]);
        let some = FaultAttr {
            probability: 10,
            ..always
        };
        let hit = failures(&some, 10_000, 8);
        assert!((800..1200).contains(&hit.len()), "{}", hit.len());
        assert_eq!(hit, failures(&some, 10_000, 8), "a seed decides");
        assert_ne!(hit, failures(&FaultAttr { seed: 1, ..some }, 10_000, 8));
    }

    #[test]
    fn callers_decide_if_asked() {
        let machine = Machine::builder().build();
        machine.set_backtrace(&[0x1000, 0x2000]);
        let fails = |text| {
            let point = FaultPoint::new("test");
            point.arm(&FaultAttr::parse(text).unwrap());
            point.fails(&machine, 8, 0, false)
        };
        assert!(fails("probability=100,stack=0x2000-0x2001"));
        assert!(!fails("probability=100,stack=0x2001-0x3000"));
        assert!(!fails("probability=100,stack=0x2000-0x2001,depth=1"));
        assert!(!fails("probability=100,reject=1000-1001"));
        assert!(!fails("probability=100,min-order=1"));
        assert!(fails("probability=100,ignore-gfp-wait=1"));
    }

    #[test]
    fn text_is_read_and_what_is_wrong_is_named() {
        let attr = FaultAttr::parse("probability=10,interval=100,times=-1,space=7,cache=dentry");
        let attr = attr.unwrap();
        assert_eq!((attr.probability, attr.interval, attr.times), (10, 100, -1));
        assert_eq!((attr.space, attr.cache), (7, "dentry"));
        for bad in [
            "probability=101",
            "times=-2",
            "interval=x",
            "colour=1",
            "stack=5",
            "stack=9-8",
            "cache=",
            "nth",
        ] {
            let (name, value) = bad.split_once('=').unwrap_or((bad, ""));
            assert_eq!(FaultAttr::parse(bad), Err(BadAttr { name, value }));
        }
    }

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("kmalloc-*", "kmalloc-64", true),
            ("kmalloc-?", "kmalloc-64", false),
            ("*-6?", "kmalloc-64", true),
            ("k*c-*4", "kmalloc-64", true),
            ("a*b", "aXbc", false),
            ("dentry", "dentry", true),
            ("dentry", "dentry2", false),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, name), matches, "{pattern} {name}");
        }
    }
}
