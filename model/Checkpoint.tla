------------------------------ MODULE Checkpoint ------------------------------
(* Which epoch is which: Spark's checkpoint and the epoch log, when people put back older copies of the
   one or the other, or give one log to two queries.

     Restart, NextEpoch, Committed   Spark: MicroBatchExecution, offsets/ and commits/
     Plan, Begin                     lifecycle.EpochWrite._plan_epoch, LogCommitter.begin, sinks/log_checks.py
     Commit, Intend, CheckOwner      lifecycle.EpochWrite._commit, LogCommitter.publish, EpochLog
     Adopt, AdoptEntry               sinks/operating.py

   What an intent names is visible at once: EpochLog and Files show that it comes to that. Rows are
   the places of the source, 1, 2, ..; an epoch is the rows after one place up to another. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Drivers, Queries,   \* which may be given the one log; drivers run any of them
  Rows,      \* how many rows the source has
  Filtered,  \* rows that the query drops: an epoch of only these has no intent
  Owners,    \* most owner entries
  Copies,    \* what is copied, at any time, and put back: of {"offsets", "commits", "log"}
  Restores,  \* how often
  Cuts,      \* how often the newest files of offsets/ and commits/ are removed
  Losses,    \* how often the log is lost
  Adopts,    \* how often an operator adopts the checkpoint as it is
  Off        \* the rules that are switched off

VARIABLES
  offsets,   \* by query, offsets/: the place where each epoch ends
  commits,   \* by query, commits/: the newest epoch
  log, drv,
  shown,     \* by query and row, how often it is visible
  copy, did, \* copies, and how often operators did what
  step

vars == <<offsets, commits, log, drv, shown, copy, did, step>>
View == <<offsets, commits, log, drv, shown, copy, did>>

Rule(name) == name \notin Off
NoPlan == [epoch |-> 0, begins |-> 0, ends |-> 0]

\* PlannedOffsets: number, and digests of the places where it begins and ends.
PlanOf(q, n) == [epoch |-> n, begins |-> IF n = 1 THEN 0 ELSE offsets[q][n - 1], ends |-> offsets[q][n]]
Newest(q) == PlanOf(q, Len(offsets[q]))

EmptyLog == [begun |-> 0, last |-> "none", query |-> 0, claim |-> NoPlan, held |-> NoPlan]
Nowhere == [at |-> "off", query |-> 0, plan |-> NoPlan, claim |-> NoPlan, gen |-> 0]

Init == /\ offsets = TLCEval([q \in Queries |-> <<>>]) /\ commits = TLCEval([q \in Queries |-> 0])
        /\ log = EmptyLog /\ drv = TLCEval([d \in Drivers |-> Nowhere])
        /\ shown = TLCEval([q \in Queries |-> [r \in 1..Rows |-> 0]])
        /\ copy = [offsets |-> offsets, commits |-> commits, log |-> log]
        /\ did = [copies |-> {}, restores |-> 0, cuts |-> 0, losses |-> 0, adopts |-> 0, adopting |-> NoPlan]
        /\ step = [action |-> "Init"]

Did(action, d) == step' = [action |-> action, driver |-> d]
Now(d, record) == drv' = [drv EXCEPT ![d] = record]
Stop(d) == Now(d, Nowhere)   \* the query has stopped with an error, and somebody starts it again

\* ------------------------------------------------------------------ Spark

\* A new epoch ends anywhere after the one before, and is written down before it is run.
NewEpoch(d, q, n) ==
  \E end \in 1..Rows :
    /\ end > (IF n = 1 THEN 0 ELSE offsets[q][n - 1])
    /\ offsets' = [offsets EXCEPT ![q] = Append(@, end)]
    /\ Now(d, [Nowhere EXCEPT !.at = "plan", !.query = q,
               !.plan = [epoch |-> n, begins |-> IF n = 1 THEN 0 ELSE offsets[q][n - 1], ends |-> end]])

Restart(d, q) ==
  LET n == Len(offsets[q]) IN
  /\ drv[d].at = "off" /\ did.adopting = NoPlan
  /\ IF n = 0 \/ commits[q] = n THEN NewEpoch(d, q, n + 1)
     ELSE Now(d, [Nowhere EXCEPT !.at = "plan", !.query = q, !.plan = Newest(q)]) /\ UNCHANGED offsets
  /\ step' = [action |-> "Restart", driver |-> d, query |-> q]
  /\ UNCHANGED <<commits, log, shown, copy, did>>

Crash(d) ==
  /\ drv[d].at # "off" /\ Stop(d) /\ Did("Crash", d)
  /\ UNCHANGED <<offsets, commits, log, shown, copy, did>>

\* Spark refuses to write a number twice.
Committed(d) ==
  LET r == drv[d] IN
  /\ r.at = "done" /\ Did("Committed", d)
  /\ IF commits[r.query] >= r.plan.epoch THEN Stop(d) /\ UNCHANGED commits
     ELSE Now(d, [r EXCEPT !.at = "next"]) /\ commits' = [commits EXCEPT ![r.query] = r.plan.epoch]
  /\ UNCHANGED <<offsets, log, shown, copy, did>>

NextEpoch(d) ==
  LET r == drv[d] IN
  /\ r.at = "next" /\ Did("NextEpoch", d)
  /\ IF Len(offsets[r.query]) = r.plan.epoch THEN NewEpoch(d, r.query, r.plan.epoch + 1)
     ELSE Stop(d) /\ UNCHANGED offsets
  /\ UNCHANGED <<commits, log, shown, copy, did>>

\* ------------------------------------------------------------------ planner

\* identity.is_already_committed: "yes", "no", or "error" (CheckpointMismatch)
Held(plan, mark) ==
  CASE mark.epoch = 0 \/ plan.epoch > mark.epoch -> "no"
    [] ~Rule("digest") -> "yes"
    [] plan.epoch < mark.epoch \/ plan # mark -> "error"
    [] OTHER -> "yes"

\* What has to be so before the owner entry: EpochLog._check_query, history.check_first (and
\* check_new, which asks the target), history.check_history.
Fits(q, plan) ==
  /\ Rule("query") => log.query \in {0, q}
  /\ Rule("empty") => (log.begun = 0 => plan.epoch = 1 /\ \A x \in 1..Rows : shown[q][x] = 0)
  /\ Held(plan, log.held) # "error"
  /\ Rule("seen") => plan.epoch >= log.claim.epoch
  /\ Rule("holes") => (log.claim.epoch # 0 => plan.epoch <= log.claim.epoch + 1)
  /\ \A before \in {log.claim} \cup IF Rule("held") THEN {log.held} ELSE {} :
       Rule("follows") => (before.epoch # 0 /\ plan.epoch = before.epoch + 1 => plan.begins = before.ends)

\* The planner reads the newest epoch from the checkpoint; Spark tells it none.
Plan(d) ==
  LET r == drv[d] IN
  /\ r.at = "plan" /\ Did("Plan", d)
  /\ IF offsets[r.query] = <<>> THEN Stop(d)
     ELSE Now(d, [r EXCEPT !.at = "begin", !.claim = Newest(r.query)])
  /\ UNCHANGED <<offsets, commits, log, shown, copy, did>>

Begin(d) ==
  LET r == drv[d]
      s == [log EXCEPT !.begun = @ + 1, !.last = "owner", !.query = r.query, !.claim = r.claim]
  IN /\ r.at = "begin" /\ log.begun < Owners /\ Did("Begin", d)
     /\ IF Fits(r.query, r.claim) THEN log' = s /\ Now(d, [r EXCEPT !.at = "stage", !.gen = s.begun])
        ELSE Stop(d) /\ UNCHANGED log
     /\ UNCHANGED <<offsets, commits, shown, copy, did>>

\* Tasks know the number, and skip what is held; then the committer.
Commit(d) ==
  LET r == drv[d]
      held == Held(r.claim, log.held)
      rows == {x \in (r.plan.begins + 1)..r.plan.ends : x \notin Filtered}
  IN /\ r.at = "stage" /\ Did("Commit", d)
     /\ IF (r.plan.epoch # r.claim.epoch) \/ held = "error" THEN Stop(d)
        ELSE Now(d, [r EXCEPT !.at = IF held = "yes" \/ rows = {} THEN "owned" ELSE "intend"])
     /\ UNCHANGED <<offsets, commits, log, shown, copy, did>>

CheckOwner(d) ==
  /\ drv[d].at = "owned" /\ Did("CheckOwner", d)
  /\ IF log.begun = drv[d].gen THEN Now(d, [drv[d] EXCEPT !.at = "done"]) ELSE Stop(d)
  /\ UNCHANGED <<offsets, commits, log, shown, copy, did>>

Intend(d) ==
  LET r == drv[d]
      rows == {x \in (r.plan.begins + 1)..r.plan.ends : x \notin Filtered}
      fits == log.begun = r.gen /\ log.last = "owner" /\ r.plan.epoch > log.held.epoch
  IN /\ r.at = "intend" /\ Did("Intend", d)
     /\ IF ~fits THEN Stop(d) /\ UNCHANGED <<log, shown>>
        ELSE /\ log' = [log EXCEPT !.last = "intent", !.held = log.claim]
             /\ shown' = [shown EXCEPT ![r.query] = [x \in 1..Rows |-> IF x \in rows THEN @[x] + 1 ELSE @[x]]]
             /\ Now(d, [r EXCEPT !.at = "done"])
     /\ UNCHANGED <<offsets, commits, copy, did>>

\* ------------------------------------------------------------------ operators

\* Nobody touches a checkpoint while its query runs: two drivers that plan one epoch differently are
\* found out only if the second one begins before the first one has published (docs/recovery.md).
Stopped == did.adopting = NoPlan /\ \A d \in Drivers : drv[d].at = "off"

Copy(what) ==   \* a copy of a live checkpoint is not taken in one step
  /\ what \in Copies \ did.copies /\ did' = [did EXCEPT !.copies = @ \cup {what}]
  /\ copy' = CASE what = "offsets" -> [copy EXCEPT !.offsets = offsets]
               [] what = "commits" -> [copy EXCEPT !.commits = commits]
               [] OTHER -> [copy EXCEPT !.log = log]
  /\ step' = [action |-> "Copy", what |-> what]
  /\ UNCHANGED <<offsets, commits, log, drv, shown>>

Restore(what) ==
  /\ what # {} /\ what \subseteq did.copies /\ did.restores < Restores /\ Stopped
  \* A log that lacks no more than the epoch that Spark runs again looks like one that is whole.
  /\ "log" \in what => \A q \in Queries :
       commits[q] = Len(offsets[q]) \/ copy.log.claim.epoch + 1 < Len(offsets[q])
  /\ did' = [did EXCEPT !.restores = @ + 1]
  /\ offsets' = IF "offsets" \in what THEN copy.offsets ELSE offsets
  /\ commits' = IF "commits" \in what THEN copy.commits ELSE commits
  /\ log' = IF "log" \in what THEN copy.log ELSE log
  /\ step' = [action |-> "Restore", what |-> what]
  /\ UNCHANGED <<drv, shown, copy>>

Cut(q, n, c) ==   \* damaged files are removed, so that the query starts
  /\ did.cuts < Cuts /\ Stopped /\ n \in 0..Len(offsets[q]) /\ c \in 0..commits[q]
  /\ n < Len(offsets[q]) \/ c < commits[q]
  /\ offsets' = [offsets EXCEPT ![q] = SubSeq(@, 1, n)] /\ commits' = [commits EXCEPT ![q] = c]
  /\ did' = [did EXCEPT !.cuts = @ + 1]
  /\ step' = [action |-> "Cut", query |-> q, offsets |-> n, commits |-> c]
  /\ UNCHANGED <<log, drv, shown, copy>>

Lose ==
  /\ did.losses < Losses /\ Stopped
  /\ did' = [did EXCEPT !.losses = @ + 1] /\ log' = EmptyLog /\ step' = [action |-> "Lose"]
  /\ UNCHANGED <<offsets, commits, drv, shown, copy>>

\* `krishiv-spark log adopt`, by somebody who has looked: all rows up to the end of an epoch are in
\* the sink, and no others. Were it two entries, the operator's process might die between them.
Truth(q, plan) == \A x \in 1..Rows : shown[q][x] = (IF x <= plan.ends /\ x \notin Filtered THEN 1 ELSE 0)

Adopted(q) ==   \* Operator.adopted
  LET n == Len(offsets[q]) IN
  {plan \in {PlanOf(q, m) : m \in {m \in {n - 1, n} : m > 0 /\ (commits[q] = n => m = n)}} : Truth(q, plan)}

Adopt(q, plan) ==
  LET owner == [log EXCEPT !.begun = @ + 1, !.last = "owner", !.query = q]
      adopted == [owner EXCEPT !.last = "adopted", !.claim = plan, !.held = plan]
  IN /\ did.adopts < Adopts /\ Stopped /\ log.begun < Owners
     /\ IF Rule("oneentry") THEN log' = adopted /\ did' = [did EXCEPT !.adopts = @ + 1]
        ELSE /\ log' = [owner EXCEPT !.claim = plan]
             /\ did' = [did EXCEPT !.adopts = @ + 1, !.adopting = plan]
     /\ step' = [action |-> "Adopt", query |-> q, epoch |-> plan.epoch]
     /\ UNCHANGED <<offsets, commits, drv, shown, copy>>

\* `krishiv-spark log resolve`: an owner entry of no epoch; nothing is unfinished here.
Resolve(q) ==
  /\ did.adopts < Adopts /\ Stopped /\ log.begun < Owners /\ (Rule("unresolved") => log.begun > 0)
  /\ log' = [log EXCEPT !.begun = @ + 1, !.last = "owner", !.query = q]
  /\ did' = [did EXCEPT !.adopts = @ + 1] /\ step' = [action |-> "Resolve", query |-> q]
  /\ UNCHANGED <<offsets, commits, drv, shown, copy>>

AdoptEntry ==
  /\ did.adopting # NoPlan /\ did' = [did EXCEPT !.adopting = NoPlan]
  /\ log' = [log EXCEPT !.last = "adopted", !.held = did.adopting]
  /\ step' = [action |-> "AdoptEntry"]
  /\ UNCHANGED <<offsets, commits, drv, shown, copy>>

AdoptDies ==
  /\ did.adopting # NoPlan /\ did' = [did EXCEPT !.adopting = NoPlan]
  /\ step' = [action |-> "AdoptDies"]
  /\ UNCHANGED <<offsets, commits, log, drv, shown, copy>>

Next ==
  \/ \E q \in Queries : Resolve(q) \/ (\E plan \in Adopted(q) : Adopt(q, plan))
  \/ Lose \/ AdoptEntry \/ AdoptDies
  \/ \E d \in Drivers : \/ (\E q \in Queries : Restart(d, q))
                        \/ Crash(d) \/ Committed(d) \/ NextEpoch(d)
                        \/ Plan(d) \/ Begin(d) \/ Commit(d) \/ CheckOwner(d) \/ Intend(d)
  \/ \E what \in Copies : Copy(what)
  \/ \E what \in SUBSET Copies : Restore(what)
  \/ \E q \in Queries : \E n, c \in 0..Rows : Cut(q, n, c)

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------ what holds

\* Whoever gets past the planner finds every row before its epoch in the sink, and whoever is done
\* every row of it: else rows are lost, and nobody is told.
Passed == {"stage", "owned", "intend", "done", "next"}
NoLoss == \A d \in Drivers : LET r == drv[d] IN r.at \in Passed =>
  \A x \in 1..(IF r.at \in {"done", "next"} THEN r.plan.ends ELSE r.plan.begins) :
    x \in Filtered \/ shown[r.query][x] >= 1
NoDuplicate == \A q \in Queries : \A x \in 1..Rows : shown[q][x] <= 1

\* As long as nobody touches anything, the checkpoint as it is gets past the planner.
GetsOn == did.cuts + did.restores + did.losses + did.adopts = 0 /\ Cardinality(Queries) = 1 =>
  \A q \in Queries : offsets[q] # <<>> => Fits(q, Newest(q))

Symmetric == Permutations(Drivers)
===============================================================================
