//! `dead`: events that were given up.

use trimtab_bus::{DeadLetter, Published};
use trimtab_events::Event;

use super::args::{DeadArgs, DeadCommand};
use super::{Context, Exit, Usage, runtime, table};
use crate::clock::timestamp;

/// `dead`
pub(crate) async fn run(context: &Context, args: DeadArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.bus.apply(&mut config);
    if config.nats.url.is_none() {
        let why = "give --nats URL: what is given up inside one process is in its log, and ends with it";
        anyhow::bail!(Usage(why.to_owned()));
    }
    config.nats.create = false;
    let bus = runtime::wires(&config, &runtime::instance()).await?.bus;
    match args.command {
        DeadCommand::List { limit } => {
            let letters = bus.dead(limit).await?;
            if context.json() {
                for letter in &letters {
                    println!("{}", serde_json::to_string(letter)?);
                }
            } else {
                list(&letters);
            }
            Ok(Exit::Done)
        }
        DeadCommand::Show { id } => {
            let Some(letter) = bus.letter(&id).await? else { anyhow::bail!(Usage(absent(&id))) };
            if context.json() {
                println!("{}", serde_json::to_string(&letter)?);
            } else {
                show(&letter);
            }
            Ok(Exit::Done)
        }
        DeadCommand::Retry { ids } => {
            let mut undone = 0;
            for id in &ids {
                let says = match bus.retry(id).await {
                    Ok(Some(Published::Outstanding)) => {
                        Err(format!("{id}: another decision about it is outstanding; it stays"))
                    }
                    Ok(Some(_)) => Ok(format!("{id}: it waits in its queue again")),
                    Ok(None) => Err(absent(id)),
                    Err(e) => Err(format!("{id}: {e}")),
                };
                undone += tell(says);
            }
            Ok(exit(ids.len(), undone))
        }
        DeadCommand::Drop { ids } => {
            let mut undone = 0;
            for id in &ids {
                undone += tell(match bus.forget(id).await {
                    Ok(true) => Ok(format!("{id}: gone")),
                    Ok(false) => Err(absent(id)),
                    Err(e) => Err(format!("{id}: {e}")),
                });
            }
            Ok(exit(ids.len(), undone))
        }
    }
}

fn absent(id: &str) -> String {
    format!("there is no dead letter {id}; `trimtab dead list` shows which there are")
}

fn tell(says: Result<String, String>) -> usize {
    match says {
        Ok(says) => println!("{says}"),
        Err(why) => {
            eprintln!("{why}");
            return 1;
        }
    }
    0
}

fn exit(all: usize, undone: usize) -> Exit {
    match undone {
        0 => Exit::Done,
        undone if undone == all => Exit::Failed,
        _ => Exit::Partial,
    }
}

fn list(letters: &[DeadLetter]) {
    if letters.is_empty() {
        println!("Nothing was given up.");
        return;
    }
    let mut rows = table::table(&["NUMBER", "WHEN", "ROLE", "TRIES", "SUBJECT", "WHY"], &[0, 3]);
    for DeadLetter { id, role, why, tries, at_ms, event } in letters {
        let subject = Event::from_bytes(event.as_bytes()).map_or_else(|_| "(no event)".to_owned(), |e| e.subject);
        rows.add_row([
            id.clone(),
            timestamp(*at_ms).to_string(),
            role.clone(),
            tries.to_string(),
            subject,
            why.clone(),
        ]);
    }
    table::print(&rows);
}

fn show(letter: &DeadLetter) {
    let DeadLetter { id, role, why, tries, at_ms, event } = letter;
    println!("number  {id}\nwhen    {}\nrole    {role}\ntries   {tries}\nwhy     {why}\n", timestamp(*at_ms));
    let pretty =
        serde_json::from_str::<serde_json::Value>(event).and_then(|event| serde_json::to_string_pretty(&event));
    // What is no event is shown as it is kept.
    println!("{}", pretty.unwrap_or_else(|_| event.clone()));
}
