//! Every subject of every job, with little to do, in a process of its own as it needs it: this test starts itself again.

use flagstone_bench::{Job, Scale};
use std::process::Command;
use std::time::Duration;

const CHILD: &str = "BENCH_SUBJECT";

/// What a child does.
#[test]
fn one_subject() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (job, subject) = what.split_once('/').unwrap();
    let job = Job::named(job).unwrap();
    let scale = Scale {
        slice: Duration::from_micros(200),
        count: 100,
        seed: 3,
    };
    let mut metrics = 0;
    let mut print = |metric: String, value: f64| {
        assert!(value.is_finite() && value >= 0.0, "{metric} is {value}");
        metrics += 1;
    };
    match job.run(subject, &scale, &mut print) {
        Ok(()) => assert!(metrics > 0),
        // Plain arrays need CPU 0.
        Err(flagstone_bench::Error::Processor { cpu: 0, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_subject_measures() {
    let this = std::env::current_exe().unwrap();
    for job in Job::ALL {
        assert_eq!(Job::named(job.name()), Some(*job));
        for subject in job.subjects() {
            let output = Command::new(&this)
                .args(["--exact", "one_subject", "--nocapture"])
                .env(CHILD, format!("{}/{subject}", job.name()))
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{} of {subject}: {}",
                job.name(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn a_subject_that_does_not_exist_is_named() {
    let error = Job::Pair
        .run("nobody", &Scale::DEFAULT, &mut |_, _| {})
        .unwrap_err();
    assert_eq!(error.to_string(), "pair has no subject nobody");
}
