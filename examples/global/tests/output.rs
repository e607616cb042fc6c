//! The program runs, and says how many objects are in use.

use std::process::Command;

#[test]
fn the_program_runs_on_flagstone() {
    let output = Command::new(env!("CARGO_BIN_EXE_flagstone-example-global"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text,
        "8 words, `the` 2 times\n\
         after 900 were closed: 100 orders in use\n\
         after the threads: 0 orders in use\n\
         the cache is gone\n"
    );
}
