//! What is known about the memory that a report is about.

use flagstone_types::{Bytes, CpuId, Nanos};

use crate::{Stack, StackDepot, Track};

/// An allocation or a free: a [`Track`] with its stack looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The thread or process.
    pub task: u32,
    /// The CPU.
    pub cpu: CpuId,
    /// When.
    pub when: Nanos,
    /// The call stack.
    pub stack: Stack<'a>,
}

impl<'a> Event<'a> {
    /// The event that `track` recorded, if it recorded one, with its stack from `depot`.
    #[must_use]
    pub fn of(track: &Track, depot: Option<&'a StackDepot>) -> Option<Self> {
        track.is_recorded().then(|| Self {
            task: track.task,
            cpu: track.cpu,
            when: track.when,
            stack: depot.map_or(Stack::EMPTY, |depot| depot.get(track.stack)),
        })
    }
}

/// Where an object is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectState {
    /// A user has it.
    #[default]
    Allocated,
    /// It was freed.
    Freed,
    /// It was freed and waits in quarantine.
    Quarantined,
}

/// An object of a cache, or a run of pages handed out as one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Object<'a> {
    /// The cache; empty for memory that is of no cache: a run of pages, or a mapping of its own.
    pub cache: &'a str,
    /// The address of its first byte that a user may have.
    pub start: usize,
    /// Bytes that an object of the cache has for a user.
    pub size: Bytes,
    /// Bytes that were asked for, if that is known and the object has been allocated.
    pub requested: Option<Bytes>,
    /// Where it is in its life.
    pub state: ObjectState,
    /// Its last allocation.
    pub allocated: Option<Event<'a>>,
    /// Its last free.
    pub freed: Option<Event<'a>>,
    /// How far its start is from the start of its slab.
    pub offset_in_slab: Option<Bytes>,
}

impl Object<'_> {
    /// Bytes that accesses may touch while it is allocated: those that were asked for, else all.
    #[must_use]
    pub fn extent(&self) -> Bytes {
        self.requested.unwrap_or(self.size)
    }
}

/// The memory that a report is about.
#[derive(Clone, Copy, Debug, Default)]
pub enum Place<'a> {
    /// Nothing is known.
    #[default]
    Unknown,
    /// An object, or memory next to one.
    Object(Object<'a>),
    /// A global variable.
    Global {
        /// Its name.
        name: &'a str,
        /// The file that defines it, if known.
        module: &'a str,
        /// Its address.
        start: usize,
        /// Its bytes, without the red zone behind it.
        size: Bytes,
    },
    /// A frame of a task's stack.
    Stack {
        /// The task.
        task: u32,
        /// Its name.
        name: &'a str,
        /// A return address in the function whose frame it is.
        function: usize,
        /// The lowest address of what the compiler described.
        start: usize,
        /// The compiler's description of the frame: the number of variables, and for each its offset, its size, the length of its name, and the name,
        /// with blanks between them. Empty if it is not known.
        variables: &'a str,
    },
}

/// Whoever can tell what object an address is in, or next to.
pub trait DescribeObject {
    /// Calls `tell` once, with what is known about the object at or around `address`, if there is one. What is lent is valid during the call only. Works in
    /// any context, holding any lock: where something is locked, less is told.
    fn describe(&self, address: usize, tell: &mut dyn FnMut(&Object<'_>));
}
