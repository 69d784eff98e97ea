//! `protect`: wishes to be left alone.

use trimtab_events::Protection;

use super::args::ProtectArgs;
use super::run::Process;
use super::table::{print, table};
use super::{Context, Exit, runtime};
use crate::clock::timestamp;
use crate::config::System;
use crate::wishes::Wishes;

/// `protect`
pub(crate) async fn protect(context: &Context, args: ProtectArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.bus.apply(&mut config);
    // A wish that is noted for another system is heeded by nobody.
    config.system = args.subject.as_deref().and_then(System::of_subject).unwrap_or(config.system);
    let process = Process::open(config, runtime::instance()).await?;
    let activity = process.activity();
    let exit = match (args.subject, args.by) {
        (Some(subject), Some(by)) => {
            let journal = runtime::journal(&process.config, "protect", process.clock.clone())?;
            let wish = Protection { subject, by, until_ms: args.until.map(|until| until.0) };
            Wishes::new(activity, journal).note(&wish, args.remove).await?;
            let until = wish.until_ms.map_or(String::new(), |until| format!(" until {}", timestamp(until)));
            match args.remove {
                false => println!("{} is left alone{until}.", wish.subject),
                true => println!("{} is judged by the rules again.", wish.subject),
            }
            Exit::Done
        }
        _ => {
            let (wishes, marks) = (activity.protections().await?, activity.marks().await?);
            if context.json() {
                println!("{}", serde_json::json!({ "protected": wishes, "marked": marks }));
            } else {
                let mut rows = table(&["", "SUBJECT", "BY", "UNTIL OR SINCE"], &[]);
                for wish in wishes {
                    let until = wish.until_ms.map_or("for ever".to_owned(), |until| timestamp(until).to_string());
                    rows.add_row(["protected".to_owned(), wish.subject, wish.by, until]);
                }
                for mark in marks {
                    rows.add_row([
                        "marked".to_owned(),
                        mark.subject,
                        String::new(),
                        timestamp(mark.marked_ms).to_string(),
                    ]);
                }
                print(&rows);
            }
            Exit::Done
        }
    };
    process.finish().await;
    Ok(exit)
}
