//! Every pointer that went into an array comes out exactly once, in every form, under every disturbance.

use flagstone_host::{ArrayParams, CpuCache, Host, PageMap, PhysMem, Push};
use flagstone_seeded::{
    ArrayForm, ArrayStats, Call, Failure, Fault, Machine, Mutation, Report, Rng, Task,
    for_each_seed, task,
};
use flagstone_types::CpuId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

const OBJECT: usize = 64;

/// Who has each object: the independent model. An object is `out` while a task owns it.
struct Ledger {
    index: HashMap<NonNull<u8>, usize>,
    out: RefCell<Vec<bool>>,
    problem: RefCell<Option<String>>,
}

impl Ledger {
    fn complain(&self, text: String) {
        self.problem.borrow_mut().get_or_insert(text);
    }

    /// An array handed the object out.
    fn came_out(&self, object: NonNull<u8>) {
        match self.index.get(&object) {
            Some(&i) if !self.out.borrow()[i] => self.out.borrow_mut()[i] = true,
            Some(i) => self.complain(format!("object {i} was handed out twice")),
            None => self.complain(format!("{object:p} was never pushed")),
        }
    }

    /// The object is about to be given to an array.
    fn goes_in(&self, object: NonNull<u8>) {
        self.out.borrow_mut()[self.index[&object]] = false;
    }
}

/// What one machine is asked to do.
#[derive(Clone, Copy)]
struct Plan {
    form: ArrayForm,
    mutation: Option<Mutation>,
    /// Whether tasks are interrupted by a handler that uses the array too.
    interrupted: bool,
    cpus: usize,
    tasks: usize,
    rounds: usize,
}

fn work(
    host: &Machine,
    array: &<&Machine as Host>::Array,
    ledger: &Ledger,
    mine: &RefCell<Vec<NonNull<u8>>>,
    rng: &Rng,
) {
    work_of(rng.below(12), host, array, ledger, mine, rng);
}

fn work_of(
    what: usize,
    host: &Machine,
    array: &<&Machine as Host>::Array,
    ledger: &Ledger,
    mine: &RefCell<Vec<NonNull<u8>>>,
    rng: &Rng,
) {
    let cpus = host_cpus(host);
    match what {
        0..=2 => {
            if let Some(object) = array.pop() {
                ledger.came_out(object);
                mine.borrow_mut().push(object);
            }
        }
        3..=5 => {
            let Some(object) = mine.borrow_mut().pop() else {
                return;
            };
            ledger.goes_in(object);
            // SAFETY: A1: the task owns the object, which has 64 bytes.
            match unsafe { array.push(object) } {
                Push::Done => {}
                Push::Full => {
                    ledger.came_out(object);
                    mine.borrow_mut().push(object);
                }
                Push::OnTop => {
                    ledger.complain("an object that is out was said to be on top".into())
                }
            }
        }
        6..=7 => {
            let mut into = [MaybeUninit::uninit(); 5];
            let want = 1 + rng.below(5);
            let n = array.pop_n(&mut into[..want]);
            for place in &into[..n] {
                // SAFETY: A1: the first `n` were written.
                let object = unsafe { place.assume_init() };
                ledger.came_out(object);
                mine.borrow_mut().push(object);
            }
        }
        8..=9 => {
            let mut some: Vec<_> = {
                let mut mine = mine.borrow_mut();
                let keep = mine.len().saturating_sub(1 + rng.below(5));
                mine.split_off(keep)
            };
            some.iter().for_each(|o| ledger.goes_in(*o));
            // SAFETY: A1: the task owns the objects.
            let n = unsafe { array.push_n(&some) };
            some.truncate(some.len() - n);
            some.iter().for_each(|o| ledger.came_out(*o));
            mine.borrow_mut().extend(some);
        }
        10 => array.set_limit(CpuId(rng.below(cpus) as u32), rng.below(9) as u32),
        _ => {
            let Some(stopped) = host.stop_arrays() else {
                return;
            };
            for _ in 0..1 + rng.below(2) {
                let cpu = CpuId(rng.below(cpus) as u32);
                host.drain_all(&stopped, array, cpu, ledger, mine);
            }
        }
    }
}

fn host_cpus(machine: &Machine) -> usize {
    use flagstone_host::Cpus;
    machine.possible_cpus() as usize
}

trait DrainAll {
    fn drain_all(
        &self,
        stopped: &flagstone_seeded::Stopped<'_>,
        array: &flagstone_seeded::Array<'_>,
        cpu: CpuId,
        ledger: &Ledger,
        mine: &RefCell<Vec<NonNull<u8>>>,
    );
}

impl DrainAll for Machine {
    fn drain_all(
        &self,
        stopped: &flagstone_seeded::Stopped<'_>,
        array: &flagstone_seeded::Array<'_>,
        cpu: CpuId,
        ledger: &Ledger,
        mine: &RefCell<Vec<NonNull<u8>>>,
    ) {
        Host::drain(&self, stopped, array, cpu, &mut |objects| {
            for object in objects {
                ledger.came_out(*object);
                mine.borrow_mut().push(*object);
            }
        });
    }
}

thread_local!(static INTERRUPTS: Cell<u64> = const { Cell::new(0) });

/// Runs the plan. `Err` says what went wrong with the pointers.
fn run(seed: u64, plan: Plan) -> Result<(Report, ArrayStats), String> {
    let mut builder = Machine::builder()
        .cpus(plan.cpus)
        .nodes(1 + plan.cpus / 3)
        .seed(seed)
        .form(plan.form);
    if let Some(mutation) = plan.mutation {
        builder = builder.mutation(mutation);
    }
    if plan.interrupted {
        builder = builder.interrupts(true);
    }
    let machine = builder.build();
    let rng = Rng::new(seed);
    let mut array = (&machine)
        .new_array(ArrayParams {
            capacity: 8,
            link_offset: 16,
        })
        .unwrap();
    for cpu in 0..plan.cpus {
        array.set_limit(CpuId(cpu as u32), 8);
    }
    let mut start = None;
    (&machine).boot_ranges(&mut |range| start = start.or(Some(range.frames.start)));
    let base = (&machine).frame_ptr(start.unwrap());
    let per_task = 6;
    // SAFETY: A1: the first frames of the machine's memory, used by nobody else.
    let objects: Vec<NonNull<u8>> = (0..plan.tasks * per_task)
        .map(|i| unsafe { base.add(i * OBJECT) })
        .collect();
    let ledger = Ledger {
        index: objects.iter().enumerate().map(|(i, o)| (*o, i)).collect(),
        out: RefCell::new(vec![true; objects.len()]),
        problem: RefCell::new(None),
    };
    let owned: Vec<RefCell<Vec<NonNull<u8>>>> = objects
        .chunks(per_task)
        .map(|c| RefCell::new(c.to_vec()))
        .collect();
    let ended = Cell::new(0);
    let tasks: Vec<Task<'_>> = owned
        .iter()
        .map(|mine| {
            let task_rng = Rng::new(rng.bits());
            let (machine, array, ledger, ended) = (&machine, &array, &ledger, &ended);
            task(move |ctx| {
                for _ in 0..plan.rounds {
                    work(machine, array, ledger, mine, &task_rng);
                    if task_rng.chance(16) {
                        ctx.migrate(CpuId(task_rng.below(plan.cpus) as u32));
                    }
                }
                ended.set(ended.get() + 1);
            })
        })
        .collect();
    let (handler_rng, handlers) = (Rng::new(rng.bits()), RefCell::new(Vec::new()));
    let handler = || {
        // Work that may be done in interrupts: no limits, no stops.
        match handler_rng.below(2) {
            0 => work_of(
                handler_rng.below(3),
                &machine,
                &array,
                &ledger,
                &handlers,
                &handler_rng,
            ),
            _ => work_of(
                3 + handler_rng.below(7),
                &machine,
                &array,
                &ledger,
                &handlers,
                &handler_rng,
            ),
        }
    };
    let result = if plan.interrupted {
        machine.with_interrupts(&handler, || machine.try_run(tasks))
    } else {
        machine.try_run(tasks)
    };
    let report = result.map_err(|f: Failure| f.to_string())?;
    INTERRUPTS.set(INTERRUPTS.get() + machine.interrupts());
    assert_eq!(ended.get(), plan.tasks);
    for cpu in 0..plan.cpus {
        (&machine).drain_unshared(&mut array, CpuId(cpu as u32), &mut |objects| {
            objects.iter().for_each(|o| ledger.came_out(*o));
        });
    }
    if let Some(i) = ledger.out.borrow().iter().position(|out| !out) {
        ledger.complain(format!("object {i} is lost"));
    }
    match ledger.problem.take() {
        Some(problem) => Err(problem),
        None => Ok((report, machine.array_stats())),
    }
}

fn plan(seed: u64, form: ArrayForm) -> Plan {
    let rng = Rng::new(!seed);
    let cpus = rng.pick(&[1, 2, 3, 4, 8, 64]);
    let tasks = if form == ArrayForm::Plain {
        cpus.min(6)
    } else {
        2 + rng.below(10)
    };
    Plan {
        form,
        mutation: None,
        interrupted: form != ArrayForm::Plain && rng.chance(100),
        cpus,
        tasks,
        rounds: 40,
    }
}

fn conserves(form: ArrayForm) -> ArrayStats {
    let mut sum = ArrayStats::default();
    for_each_seed(600, |seed| match run(seed, plan(seed, form)) {
        Ok((_, stats)) => {
            sum.restarts += stats.restarts;
            sum.exchange_failures += stats.exchange_failures;
            sum.contended += stats.contended;
            sum.stops += stats.stops;
            sum.drains += stats.drains;
        }
        Err(problem) => panic!("SEED={seed:#x} {form:?}: {problem}"),
    });
    eprintln!("{form:?}: {sum:?}, {} interrupts", INTERRUPTS.get());
    assert!(!many_seeds() || form == ArrayForm::Plain || INTERRUPTS.get() > 100);
    sum
}

fn many_seeds() -> bool {
    std::env::var_os("FLAGSTONE_SEED").is_none() && std::env::var_os("FLAGSTONE_SEEDS").is_none()
}

#[test]
fn restartable_arrays_lose_and_double_nothing() {
    let stats = conserves(ArrayForm::Restartable);
    assert!(
        !many_seeds() || (stats.restarts > 1000 && stats.drains > 1000),
        "{stats:?}"
    );
}

#[test]
fn exchange_locked_arrays_lose_and_double_nothing() {
    let stats = conserves(ArrayForm::ExchangeLock);
    assert!(
        !many_seeds() || (stats.contended > 100 && stats.drains > 1000),
        "{stats:?}"
    );
}

#[test]
fn transaction_arrays_lose_and_double_nothing() {
    let stats = conserves(ArrayForm::TransactionArray);
    assert!(
        !many_seeds() || (stats.exchange_failures > 1000 && stats.contended > 100),
        "{stats:?}"
    );
}

#[test]
fn transaction_lists_lose_and_double_nothing() {
    let stats = conserves(ArrayForm::TransactionList);
    assert!(
        !many_seeds() || (stats.exchange_failures > 1000 && stats.drains > 1000),
        "{stats:?}"
    );
}

#[test]
fn plain_arrays_lose_and_double_nothing_where_nothing_intervenes() {
    conserves(ArrayForm::Plain);
}

/// How many of the seeds it takes until a broken array is found out.
fn found_after(form: ArrayForm, mutation: Mutation, most: u64) -> u64 {
    let seeds = Rng::new(99);
    for n in 1..=most {
        let seed = seeds.bits();
        if run(
            seed,
            Plan {
                mutation: Some(mutation),
                ..plan(seed, form)
            },
        )
        .is_err()
        {
            eprintln!("{mutation:?} was found after {n} seeds");
            return n;
        }
    }
    panic!("{mutation:?} was not found in {most} seeds");
}

#[test]
fn reading_the_count_before_the_stop_flag_is_found() {
    found_after(ArrayForm::Restartable, Mutation::StopReadAfterCount, 500);
}

#[test]
fn not_restarting_a_preempted_section_is_found() {
    found_after(ArrayForm::Restartable, Mutation::NoRestart, 500);
}

#[test]
fn stopping_without_restarting_is_found() {
    found_after(ArrayForm::Restartable, Mutation::NoRestartAtStop, 500);
}

#[test]
fn pushing_without_the_busy_bit_is_found() {
    found_after(ArrayForm::TransactionArray, Mutation::PushWithoutBusy, 500);
}

#[test]
fn a_seed_replays_its_trace_and_another_seed_has_another() {
    for form in ArrayForm::ALL {
        let hash = |seed| {
            run(
                seed,
                Plan {
                    form,
                    mutation: None,
                    interrupted: form != ArrayForm::Plain && seed % 2 == 0,
                    cpus: 4,
                    tasks: 4,
                    rounds: 30,
                },
            )
            .unwrap()
        };
        for seed in 0..20 {
            let (a, b) = (hash(seed), hash(seed));
            assert_eq!(a, b, "{form:?} seed {seed}");
        }
        assert_ne!(hash(1).0.trace_hash, hash(2).0.trace_hash);
    }
}

#[test]
fn what_is_on_top_is_told_in_every_form_even_when_full() {
    for form in ArrayForm::ALL {
        let machine = Machine::builder().form(form).build();
        let array = (&machine)
            .new_array(ArrayParams {
                capacity: 4,
                link_offset: 0,
            })
            .unwrap();
        let mut start = None;
        (&machine).boot_ranges(&mut |range| start = start.or(Some(range.frames.start)));
        let a = (&machine).frame_ptr(start.unwrap());
        // SAFETY: A1: both are in the machine's memory, which nobody else uses.
        unsafe {
            let b = a.add(OBJECT);
            assert_eq!(
                array.push(a),
                Push::Full,
                "{form:?}: a new array has limit 0"
            );
            array.set_limit(CpuId(0), 2);
            assert_eq!(array.push(a), Push::Done);
            assert_eq!(array.push(a), Push::OnTop);
            assert_eq!(array.push(b), Push::Done);
            assert_eq!(
                array.push(b),
                Push::OnTop,
                "{form:?}: on top wins over full"
            );
            assert_eq!(array.push(a), Push::Full);
            array.set_limit(CpuId(0), 0);
            assert_eq!(array.push(b), Push::OnTop);
            let stopped = (&machine).stop_arrays().unwrap();
            assert_eq!((array.push(b), array.pop()), (Push::Full, None));
            drop(stopped);
            let mut into = [MaybeUninit::uninit(); 4];
            assert_eq!(array.pop_n(&mut into), 2);
            assert_eq!(
                [into[0].assume_init(), into[1].assume_init()],
                [a, b],
                "{form:?}: the deepest first"
            );
            array.set_limit(CpuId(0), 99);
            assert_eq!(array.limit(CpuId(0)), 4);
            assert_eq!(array.push_n(&[a, b]), 2);
            assert_eq!(array.pop(), Some(b));
            assert_eq!(array.pop(), Some(a));
        }
    }
}

#[test]
fn arrays_that_can_not_be_made_or_stopped_say_so() {
    let machine = Machine::builder().build();
    machine.inject(Call::NewArray, Fault::Nth(1));
    let params = ArrayParams {
        capacity: 4,
        link_offset: 0,
    };
    assert!((&machine).new_array(params).is_err());
    let array = (&machine).new_array(params).unwrap();
    let other = (&machine).new_array(params).unwrap();
    assert_ne!(array.tag(), other.tag());
    machine.inject(Call::StopArrays, Fault::From(1));
    assert!((&machine).stop_arrays().is_none());
}
