//! The other commands: reports, manuals, completions.

use std::fs;
use std::process::{Command, Output};

fn flagstone(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_slabinfo_file_is_sorted_and_turned_into_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slabinfo");
    let row = |name: &str, active: u64, size: u64| {
        format!("{name} {active} 100 {size} 50 1 : tunables 120 60 8 : slabdata 2 2 0\n")
    };
    fs::write(
        &path,
        format!(
            "slabinfo - version: 2.1\n# name\n{}{}",
            row("small", 90, 8),
            row("large", 10, 40)
        ),
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let names = |text: &str| -> Vec<String> {
        text.lines()
            .skip(2)
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        names(&stdout(&flagstone(&["slabinfo", path]))),
        ["small", "large"]
    );
    assert_eq!(
        names(&stdout(&flagstone(&["slabinfo", path, "--sort", "size"]))),
        ["large", "small"]
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&flagstone(&["slabinfo", path, "--json"]))).unwrap();
    assert_eq!(json["caches"][1]["active_objs"], 10);
    assert!(stdout(&flagstone(&["slabinfo", path, "--layouts"])).contains("not said           2"));
}

#[test]
fn a_running_program_is_shown_by_its_process_id() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(["run", "--", "sleep", "20"])
        .env_remove("FLAGSTONE_LIVE")
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let shown = (0..200).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let output = flagstone(&["slabinfo", &pid, "--json"]);
        output.status.success().then_some(output)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&shown.expect("statistics within 4 s"))).unwrap();
    assert_eq!(json["pid"].to_string(), pid);
    assert_eq!(json["program"], "sleep");
}

#[test]
fn a_missing_source_of_statistics_is_named() {
    for (source, said) in [
        ("/no/such/file", "/no/such/file"),
        ("4294967295", "no process 4294967295"),
    ] {
        let output = flagstone(&["slabinfo", source]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(said));
    }
}

#[test]
fn every_command_has_a_manual_page_and_every_shell_its_completions() {
    let folder = tempfile::tempdir().unwrap();
    stdout(&flagstone(&["man", folder.path().to_str().unwrap()]));
    for page in [
        "flagstone.1",
        "flagstone-run.1",
        "flagstone-slabinfo.1",
        "flagstone-bench-programs.1",
    ] {
        assert!(
            fs::read_to_string(folder.path().join(page))
                .unwrap()
                .contains(".SH NAME"),
            "{page}"
        );
    }
    assert!(
        !folder.path().join("flagstone-bench-worker.1").exists(),
        "workers are no command for users"
    );
    assert!(
        fs::read_to_string(folder.path().join("flagstone-run.1"))
            .unwrap()
            .contains("Exit status: 127")
    );
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            stdout(&flagstone(&["completions", shell])).contains("slabinfo"),
            "{shell}"
        );
    }
}

#[test]
fn a_short_benchmark_prints_its_table_and_writes_its_samples() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("samples.json");
    let text = stdout(&flagstone(&[
        "bench",
        "fastpath",
        "--only",
        "pair",
        "--rounds",
        "2",
        "--without",
        "flagstone",
        "--json",
        json.to_str().unwrap(),
    ]));
    assert!(
        text.contains("glibc") && text.contains("geom. mean"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let of_glibc = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["contestant"] == "glibc")
        .unwrap();
    assert_eq!(of_glibc["samples"].as_array().unwrap().len(), 2);
}

#[test]
fn what_does_not_take_part_is_refused_by_name() {
    for (option, value) in [
        ("--only", "nothing"),
        ("--without", "nobody"),
        ("--rival", "x=/no/such/library"),
    ] {
        let output = flagstone(&["bench", "fastpath", option, value]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(value));
    }
}
