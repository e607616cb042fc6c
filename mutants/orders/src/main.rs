//! Models of the lock-free parts: small programs of two or three threads in weak memory, and what must hold in each.
//!
//! ```text
//!   flagstone-orders FIRST COUNT MODEL…      each seed runs each model once
//!   flagstone-orders --list
//! ```
//!
//! The parts are the sources of the library as they are. `cargo xtask orders` builds a copy of them in which the atomics come from `flagstone-weak`; only that
//! copy says anything: the machine's own atomics order nothing that the engine knows of. Before each run a line `at SEED MODEL` is
//! printed; what is found is the last line.

mod board;
mod models;
mod stacks;
mod syscall;

// Parts of the process host, from their own sources, over `syscall`.
#[allow(dead_code, reason = "no model forks")]
#[path = "../../../crates/malloc/src/process/grace.rs"]
mod grace;
#[allow(dead_code, reason = "no model forks")]
#[path = "../../../crates/malloc/src/process/lock.rs"]
mod lock;

use std::cell::Cell;
use std::process::ExitCode;

thread_local! {
    /// The seed and the model that run.
    static NOW: Cell<(u64, &'static str)> = const { Cell::new((0, "")) };
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--list") {
        for model in models::ALL {
            println!("{:<20} {}", model.name, model.what);
        }
        return ExitCode::SUCCESS;
    }
    let number = |n: usize| args.get(n).and_then(|text| text.parse::<u64>().ok());
    let (Some(first), Some(count)) = (number(0), number(1)) else {
        eprintln!("usage: flagstone-orders FIRST COUNT MODEL…");
        return ExitCode::from(2);
    };
    let mut chosen = Vec::new();
    for name in &args[2..] {
        let Some(model) = models::ALL.iter().find(|model| model.name == name) else {
            eprintln!("no model {name}; `--list` names them");
            return ExitCode::from(2);
        };
        chosen.push(model);
    }
    // What a model leaves behind in the middle can not be taken down: the first panic is the end.
    std::panic::set_hook(Box::new(|info| {
        let (seed, name) = NOW.get();
        let text = info.payload_as_str().unwrap_or("a panic");
        println!("found {seed} {name} {}", text.replace('\n', " "));
        std::process::exit(1);
    }));
    for seed in first..first.saturating_add(count) {
        for model in &chosen {
            println!("at {seed} {}", model.name);
            NOW.set((seed, model.name));
            (model.run)(seed);
        }
    }
    ExitCode::SUCCESS
}
