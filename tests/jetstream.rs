//! JetStream as a target, on the real nats-server: what is freed is what was decided, and no consumer that showed a sign of life loses a
//! message.

#[path = "jetstream/acts.rs"]
mod acts;
#[path = "jetstream/back.rs"]
mod back;
#[path = "jetstream/cluster.rs"]
mod cluster;
#[path = "jetstream/ground.rs"]
mod ground;
#[path = "jetstream/lists.rs"]
mod lists;
#[path = "jetstream/permissions.rs"]
mod permissions;
#[path = "jetstream/story.rs"]
mod story;
#[path = "jetstream/undo.rs"]
mod undo;

macro_rules! together {
    ($(#[$doc:meta])* $name:ident: $($part:path),* $(,)?) => {
        $(#[$doc])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 16)]
        #[ignore = "needs nats-server"]
        async fn $name() {
            ground::together(vec![$((stringify!($part), Box::pin($part()))),*]).await;
        }
    };
}

together!(
    what_is_acted_on:
    acts::whatever_holds_a_stream_lets_go_and_goes_on_behind,
    acts::whoever_is_alive_keeps_what_it_has_not_taken,
    acts::an_end_beyond_the_streams_is_never_reset_to,
    acts::what_is_to_be_left_alone_is_seen_for_what_it_is,
    acts::consumers_of_mirrors_and_sources_and_streams_of_the_servers_are_never_taken_for_stale,
    acts::of_two_that_act_at_once_one_acts,
    acts::old_messages_go_below_whoever_has_not_taken_them,
    undo::a_consumer_gets_back_what_is_still_there,
    undo::one_that_began_at_what_was_new_begins_where_it_stood,
    undo::nothing_is_taken_back_from_who_went_on_or_is_there_again,
);

together!(
    who_comes_back:
    back::whoever_pulls_again_is_seen_and_loses_nothing,
    back::whoever_fetches_for_an_instant_is_heard,
    back::whoever_acknowledges_is_seen_and_loses_nothing,
    back::whoever_subscribes_again_is_seen_and_loses_nothing,
    back::whoever_moved_went_or_was_made_anew_since_the_decision_is_left_alone,
    back::a_pause_that_is_not_ours_stays,
    back::an_act_that_is_cut_off_leaves_a_pause_that_ends_by_itself,
    permissions::a_permission_that_is_missing_is_named_and_nothing_is_half_done,
    permissions::an_account_without_jetstream_is_told_so,
    permissions::a_call_on_a_lost_connection_is_not_made_later,
);

together!(
    what_is_read_and_told:
    lists::a_restart_forgets_when_a_consumer_was_last_used_and_nothing_else,
    lists::progress_is_what_the_consumer_does,
    lists::accounts_are_kept_apart_by_name,
    story::an_abandoned_consumer_is_found_announced_moved_and_put_back,
    story::a_plan_that_is_applied_skips_what_changed_since,
    story::our_own_streams_are_scanned_without_harm,
    story::a_newcomer_sees_storage_come_back,
);
