//! redis-server under a contestant, driven by redis-benchmark without one.
//!
//! The time is the client's: the server has the contestant's malloc, the client the C library's in every run. They talk
//! through a socket in the experiment's folder, so that runs do not meet on a port.

use super::workloads::installed;
use super::{Outcome, Program, child};
use crate::bench::contestants::Contestant;
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Redis {
    server: PathBuf,
    client: PathBuf,
    folder: PathBuf,
}

/// Finds server and client.
pub(super) fn redis(folder: &Path) -> Result<Box<dyn Program>> {
    let server = installed("redis-server", "redis-server")?;
    let client = installed("redis-benchmark", "redis-tools")?;
    Ok(Box::new(Redis {
        server,
        client,
        folder: folder.to_owned(),
    }))
}

impl Program for Redis {
    fn run(&self, contestant: &Contestant) -> Result<Outcome> {
        let socket = self.folder.join("redis.socket");
        let mut command = Command::new(&self.server);
        command
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--unixsocket",
            ])
            .arg(&socket);
        command
            .arg("--dir")
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        contestant.apply(&mut command);
        let server = child::start(command)?;
        let busy = match ready(&socket, &server).and_then(|()| self.drive(&socket)) {
            Ok(busy) => busy,
            Err(error) => {
                server.abandon();
                return Err(error);
            }
        };
        UnixStream::connect(&socket)?.write_all(b"SHUTDOWN NOSAVE\r\n")?;
        let usage = server.wait()?;
        Ok(Outcome {
            seconds: busy.as_secs_f64(),
            peak_kib: usage.peak_kib,
            digest: 0,
        })
    }
}

impl Redis {
    fn drive(&self, socket: &Path) -> Result<Duration> {
        let mut command = Command::new(&self.client);
        command.arg("-s").arg(socket);
        command.args([
            "-q", "-n", "150000", "-r", "100000", "-d", "200", "-P", "16", "-c", "20",
        ]);
        command.args(["-t", "set,get,incr,lpush,rpop,sadd,hset,zadd"]);
        command
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(child::start(command)?
            .wait()
            .context("redis-benchmark")?
            .elapsed)
    }
}

/// Waits until the server answers.
fn ready(socket: &Path, server: &child::Running) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if !server.is_running() {
            bail!("the server ended before it answered");
        }
        if let Ok(mut stream) = UnixStream::connect(socket) {
            let mut answer = [0; 5];
            stream.set_read_timeout(Some(PATIENCE))?;
            if stream
                .write_all(b"PING\r\n")
                .and_then(|()| stream.read_exact(&mut answer))
                .is_ok()
                && &answer == b"+PONG"
            {
                return Ok(());
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("the server did not answer for {} s", PATIENCE.as_secs())
}
