//! The agent with fault points: it ends as by `kill -9` where a test says. Never shipped.

use std::process::ExitCode;

use node_agent::fault::{self, FaultPoint};

#[path = "../main.rs"]
mod agent;

fn main() -> ExitCode {
    match fault::arm() {
        Ok(false) => agent::main(),
        Ok(true) => {
            for point in FaultPoint::ALL {
                println!("{}", point.as_str());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("stowage-agent-faults: {error}");
            ExitCode::FAILURE
        }
    }
}
