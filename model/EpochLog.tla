------------------------------- MODULE EpochLog -------------------------------
(* The epoch log and the Kafka sink over it: drivers that die, or are believed dead and are not;
   attempts at tasks that outlive their generation; a process that cleans up after failed tasks;
   transactions that brokers abort. Actions bear the names of the functions that they stand for:

     Begin, RollForward, CheckOwner, Intend, Void     sinks/logged.py, offsets/epoch_log.py
     Plan, Commit                                     krishiv_spark/lifecycle/epoch_write.py
     Recover, Prepare, Finish, Settle, Abandon        sinks/kafka/participant.py
     AbortOpen, AbortLive, AbortOwn                   krishiv_spark/kafka/transactions.py
     Look, InitProducerId, Produce                    sinks/kafka/task.py
     Outcome                                          krishiv_spark/kafka/transactions.py, sinks/kafka/participant.py
     After.., the fields of `log`                     offsets/entries.py (Entry, State)

   README.md says more of each.

   The log is one value here, and an append one step: Journal shows that it is. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Drivers, Tasks,
  Wild,      \* most owner entries while anything may go wrong
  Owners,    \* most owner entries
  Epochs,    \* epochs are 1..Epochs
  Empty,     \* epochs without rows
  Attempts,  \* attempts at a task in one generation
  Turns,     \* task._ID_SETS: of generations
  Slots,     \* task._IDS_PER_TASK: of attempts in one generation
  AtOnce,    \* whether an attempt cannot sleep between its look for a free id and taking it
  Age,       \* how many turns older than the newest a task may be that still begins
  Failures,  \* whether attempts fail and abort what they have open, and clean-ups fail
  Pieces,    \* 1 or 2: how many writes an attempt makes
  Commits,   \* whether Spark's commits/ can be asked: batch jobs have none
  Lookup,    \* whether the topic still has the records that intents point to
  TV, Verify, First, Top,  \* see Transactions
  Timeouts,  \* when brokers abort what is open: "any" time, "batch": not once the committer has
             \* looked whether all is open, or "none"
  Off        \* the rules that are switched off

VARIABLES
  log,      \* State
  spark,    \* newest epoch in Spark's commits/
  launched, \* by turn, the epoch whose tasks were started (0 for none), and which open a transaction
  kafka,    \* Transactions
  att,      \* attempts, by turn, task and number
  named,    \* history: attempts that an intent has named
  drv,      \* drivers
  sweeper,  \* the process in which Spark calls abort() after tasks have failed
  calm,     \* from then on nothing goes wrong any more: the turn after which it is so, or -1
  step      \* what was done last, for traces; not part of the state (see View)

vars == <<log, spark, launched, kafka, att, named, drv, sweeper, calm, step>>
View == <<log, spark, launched, kafka, att, named, drv, sweeper, calm>>

Rule(name) == name \notin Off

\* ------------------------------------------------------------------ slots

Generations == 1..Owners
Numbers == 0..(Attempts - 1)
Atts == Generations \X Tasks \X Numbers    \* by turn, task and Spark's number of the attempt
Ids == Tasks \X {g % Turns : g \in Generations} \X (0..(Slots - 1))
Id(a, slot) == <<a[2], a[1] % Turns, slot>>   \* task.list_transactional_ids

K == INSTANCE Transactions

IdOf(a) == Id(a, att[a].slot)
TransactionOf(a) == [id |-> IdOf(a), pid |-> att[a].pid, epoch |-> att[a].epoch]
Rows(epoch) == IF epoch \in Empty THEN {} ELSE Tasks
Parts == 1..Pieces

\* ------------------------------------------------------------------ entries.py

NoIntent == [number |-> 0, epoch |-> 0, staged |-> {}]
EmptyLog == [number |-> 0, owner |-> 0, begun |-> 0, intent |-> NoIntent, held |-> 0,
             heldBefore |-> 0, settled |-> 0, keptEpoch |-> 0, kept |-> {}]

AfterOwner(s, settled) ==
  [s EXCEPT !.number = @ + 1, !.owner = s.number + 1, !.begun = @ + 1,
            !.settled = IF settled > @ THEN settled ELSE @]
AfterIntent(s, epoch, staged) ==
  [s EXCEPT !.number = @ + 1,
            !.intent = [number |-> s.number + 1, epoch |-> epoch, staged |-> staged],
            !.held = epoch, !.heldBefore = s.held,
            !.keptEpoch = IF epoch = @ THEN @ ELSE 0,
            !.kept = IF epoch = s.keptEpoch THEN @ ELSE {}]
AfterVoid(s, kept) ==
  [s EXCEPT !.number = @ + 1, !.intent = NoIntent, !.held = s.heldBefore,
            !.keptEpoch = s.intent.epoch, !.kept = kept]

IsFinished(s, noted) ==   \* EpochLog.is_finished; noted: what this process remembers
  s.intent.number = 0 \/ s.settled >= s.intent.number \/ s.intent.number = noted
IsCommitted(epoch) == Commits /\ epoch <= spark   \* KafkaParticipant.is_finished

\* ------------------------------------------------------------------ transactions.judge_outcome

\* By how much the epoch is higher; after the last one of a producer comes epoch 0 of another.
Raised(a, now) ==
  CASE now.pid = att[a].pid -> now.epoch - att[a].epoch
    [] TV = 2 /\ K!IsExhausted(att[a].epoch) /\ now.epoch = 0 /\ now.state \in {"committed", "aborted"} -> 1
    [] OTHER -> -1

OutcomeByCoordinator(a) ==
  LET now == kafka.of[IdOf(a)]
      raised == Raised(a, now)
  IN CASE ~Rule("exact") -> CASE now.state = "ongoing" -> "open"
                              [] now.state \in {"committed", "aborted"} -> now.state
                              [] OTHER -> "unknown"
       [] raised \notin {0, 1} -> "unknown"
       [] now.state = "ongoing" -> IF raised = 0 THEN "open" ELSE "unknown"
       [] raised = 1 /\ TV = 1 -> "unknown"
       [] now.state \in {"committed", "aborted"} -> now.state
       [] OTHER -> "unknown"

\* participant.read_outcome_from_log: the marker after the first record.
OutcomeInLog(a) ==
  CASE ~Lookup \/ \E r \in kafka.open : r.row = <<a, 1>> -> "unknown"
    [] <<a, 1>> \in kafka.visible -> "committed"
    [] OTHER -> "aborted"

Outcome(a) ==
  LET said == OutcomeByCoordinator(a) IN
  IF said = "unknown" THEN OutcomeInLog(a) ELSE said

\* ------------------------------------------------------------------ drivers

Nowhere == [at |-> "off", back |-> "", epoch |-> 0, gen |-> 0, turn |-> 0, held |-> 0, kept |-> {},
            noted |-> 0, again |-> FALSE, right |-> FALSE, was |-> FALSE,
            number |-> 0, named |-> {}, todo |-> {}, bad |-> {}, doomed |-> {}]
Unborn == [st |-> "none", slot |-> 0, pid |-> 0, epoch |-> 0, parts |-> {}, written |-> 0]
Unlaunched == [epoch |-> 0, tasks |-> {}]
Idle == [at |-> "off", gen |-> 0, doomed |-> {}]

Init == /\ log = EmptyLog /\ spark = 0 /\ launched = TLCEval([g \in Generations |-> Unlaunched])
        /\ kafka = K!NoTransactions
        /\ att = TLCEval([a \in Atts |-> Unborn])
        /\ named = {} /\ drv = TLCEval([d \in Drivers |-> Nowhere]) /\ sweeper = Idle
        /\ calm = -1 /\ step = [action |-> "Init"]

\* An error stops the query; the next driver starts anew. In the calm nothing may be an error.
Failed == IF calm < 0 THEN Nowhere ELSE [Nowhere EXCEPT !.at = "error"]
Did(action, d) == step' = [action |-> action, driver |-> d]
Now(d, record) == drv' = [drv EXCEPT ![d] = record]

Forgotten(r) == [r EXCEPT !.number = 0, !.named = {}, !.back = "", !.right = FALSE, !.was = FALSE]

\* LogCommitter.begin after _take_over: what the generation right before has left needs no sweep, if
\* whoever finished its intent has swept.
PrepareGeneration(r) ==
  LET clean == r.right /\ r.was
      next == [Forgotten(r) EXCEPT !.again = FALSE]
  IN IF clean \/ ~Rule("sweep") THEN [next EXCEPT !.at = "plan"] ELSE [next EXCEPT !.at = "list", !.back = "plan"]

\* Where a driver goes on when the newest intent is finished.
Leave(r) ==
  CASE r.back = "took" -> IF r.again
                          THEN [Forgotten(r) EXCEPT !.at = "begin", !.again = FALSE]
                          ELSE PrepareGeneration(r)
    [] OTHER -> [Forgotten(r) EXCEPT !.at = r.back]

\* LogCommitter.roll_forward, up to its first request.
RollForward(r, s, noted, back) ==
  IF IsFinished(s, noted) \/ IsCommitted(s.intent.epoch)
  THEN Leave([r EXCEPT !.back = back, !.was = TRUE, !.noted = s.intent.number])
  ELSE [r EXCEPT !.at = "recover", !.back = back, !.was = FALSE,
                 !.number = s.intent.number, !.named = s.intent.staged]

\* --- Spark

Start(d) ==
  /\ drv[d].at = "off" /\ spark < Epochs
  /\ calm < 0 \/ \A e \in Drivers : drv[e].at = "off"
  /\ Now(d, [Nowhere EXCEPT !.at = "begin", !.epoch = spark + 1]) /\ Did("Start", d)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

\* To die after a step that only looks is the same as to die before it.
Crash(d) ==
  /\ calm < 0 /\ drv[d].at \in {"begin", "recover", "finish", "settle", "list", "plan", "stage", "void", "done", "unknown"}
  /\ Now(d, Nowhere) /\ Did("Crash", d)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

\* Spark has written commits/<epoch>, and goes on with the next one.
Committed(d) ==
  LET r == drv[d]
      next == [Nowhere EXCEPT !.at = "begin", !.epoch = r.epoch + 1, !.noted = r.noted]
  IN /\ r.at = "done" /\ spark' = IF r.epoch > spark THEN r.epoch ELSE spark
     /\ Now(d, IF r.epoch < Epochs THEN next ELSE Nowhere) /\ Did("Committed", d)
     /\ UNCHANGED <<log, launched, kafka, att, named, sweeper, calm>>

\* --- planner

Begin(d) ==
  LET r == drv[d]
      settled == IF IsFinished(log, r.noted) THEN log.intent.number ELSE 0
      s == AfterOwner(log, settled)
      right == s.intent.number = s.owner - 1
      known == right \/ s.settled >= s.intent.number
      mine == [r EXCEPT !.gen = s.owner, !.turn = s.begun,
                        !.kept = IF s.keptEpoch = r.epoch THEN s.kept ELSE {},
                        !.right = right, !.again = ~known /\ Rule("settled")]
  IN /\ r.at = "begin" /\ log.begun < IF calm < 0 THEN Wild ELSE Owners
     /\ log' = s
     /\ Now(d, IF Rule("recover") THEN RollForward(mine, s, r.noted, "took")
               ELSE PrepareGeneration(mine))
     /\ Did("Begin", d)
     /\ UNCHANGED <<spark, launched, kafka, att, named, sweeper, calm>>

\* The planner's last_committed; then Spark starts the tasks, which skip an epoch that is held.
Plan(d) ==
  LET r == IF drv[d].at = "plan" THEN RollForward([drv[d] EXCEPT !.held = log.held], log, drv[d].noted, "planned")
           ELSE drv[d]
      next == [r EXCEPT !.kept = {}, !.held = 0]
      stages == r.epoch > r.held
      missing == {t \in Rows(r.epoch) : ~\E a \in r.kept : a[2] = t}   \* the others only compare
  IN /\ drv[d].at \in {"plan", "planned"} /\ Did("Plan", d)
     /\ Now(d, IF r.at = "recover" THEN r
               ELSE IF stages THEN [next EXCEPT !.at = "stage", !.named = r.kept]
               ELSE [next EXCEPT !.at = "held"])
     /\ launched' = IF r.at = "planned" /\ stages
                    THEN [launched EXCEPT ![r.turn] = [epoch |-> r.epoch, tasks |-> missing]] ELSE launched
     /\ UNCHANGED <<log, spark, kafka, att, named, sweeper, calm>>

\* --- attempts at tasks, which outlive their driver

\* transactions.abort_live: the producers of these cannot write any more. Under TV1 InitProducerId does
\* that, which aborts whatever is open under the id by then. Two rules can be switched off: "precise"
\* (also under TV2, whoever has the id by then) and "fencing" (by EndTxn, also under TV1).
AbortLive(xs) ==
  kafka' = IF ~Rule("precise") \/ (TV = 1 /\ Rule("fencing")) THEN K!FenceAll(kafka, xs)
           ELSE K!EndAll(kafka, xs, FALSE)

\* In the calm, what is old stirs no more, nor an attempt whose driver waits for it no longer.
MayStir(a) == calm < 0 \/ (a[1] > calm /\ \E d \in Drivers : drv[d].at = "stage" /\ drv[d].turn = a[1])

MayBegin(a) ==
  /\ att[a].st = "none" /\ a[2] \in launched[a[1]].tasks
  /\ log.begun - a[1] <= Age /\ MayStir(a)
  /\ IF a[3] = 0 THEN TRUE   \* numbers begin in their order
     ELSE att[<<a[1], a[2], a[3] - 1>>].st # "none"

\* Where no two attempts share an id, all of this is one step with the first record: nobody sees it.
Alone == Attempts = 1 /\ Turns >= Owners

\* transactions.pick_transactional_id, in the order of task.list_transactional_ids. Spark's number of an attempt is 0,
\* or 1 for a speculative copy; where a stage is run again, both come once more.
SlotsOf(a) == [n \in 0..(Slots - 1) |-> ((a[3] % 2) + n) % Slots]
FirstFree(a) ==
  LET order == SlotsOf(a)
      free == {n \in DOMAIN order : kafka.of[Id(a, order[n])].state # "ongoing"}
  IN IF free = {} \/ ~Rule("free") THEN order[0]
     ELSE order[CHOOSE n \in free : \A m \in free : n <= m]

Given(me, id, k) == [me EXCEPT !.st = "begun", !.pid = k.of[id].pid, !.epoch = k.of[id].epoch]

\* InitProducerId over an open transaction aborts it, and has to be asked again.
Look(a) ==
  LET id == Id(a, FirstFree(a))
      me == [att[a] EXCEPT !.st = "looked", !.slot = FirstFree(a)]
      k == K!Taken(kafka, id)
  IN /\ ~Alone /\ MayBegin(a)
     /\ IF AtOnce THEN kafka' = k /\ att' = [att EXCEPT ![a] = Given(me, id, k)]
        ELSE kafka' = kafka /\ att' = [att EXCEPT ![a] = me]
     /\ step' = [action |-> "Look", attempt |-> a, slot |-> me.slot]
     /\ UNCHANGED <<log, spark, launched, named, drv, sweeper, calm>>

InitProducerId(a) ==
  LET id == IdOf(a)
      k == K!InitProducerId(kafka, id)
  IN /\ att[a].st = "looked" /\ MayStir(a) /\ kafka' = k
     /\ att' = IF kafka.of[id].state = "ongoing" THEN att ELSE [att EXCEPT ![a] = Given(@, id, k)]
     /\ step' = [action |-> "InitProducerId", attempt |-> a]
     /\ UNCHANGED <<log, spark, launched, named, drv, sweeper, calm>>

\* The first piece goes to partition 1, a second one there too or to partition 2. Refused: it ends.
Produce(a, part) ==
  LET first == Alone /\ MayBegin(a)
      k == IF first THEN K!InitProducerId(kafka, IdOf(a)) ELSE kafka
      me == IF first THEN [att[a] EXCEPT !.st = "begun", !.epoch = First] ELSE att[a]
      x == [id |-> IdOf(a), pid |-> me.pid, epoch |-> me.epoch]
      added == part \in me.parts
      written == me.written + 1
      wrote == [me EXCEPT !.written = written, !.parts = @ \cup {part},
                          !.st = IF written = Pieces THEN "staged" ELSE "begun"]
  IN /\ me.st = "begun" /\ part <= written /\ MayStir(a)
     /\ IF K!MayProduce(k, x, part, added)
        THEN /\ kafka' = K!Produce(k, x, part, added, <<a, written>>)
             /\ att' = [att EXCEPT ![a] = wrote]
        ELSE UNCHANGED kafka /\ att' = [att EXCEPT ![a] = [Unborn EXCEPT !.st = "failed"]]
     /\ step' = [action |-> "Produce", attempt |-> a, partition |-> part]
     /\ UNCHANGED <<log, spark, launched, named, drv, sweeper, calm>>

\* An attempt fails, and aborts what it has open (transactions.try_abort): it looks whether that is
\* still its own, and then ends it in such a way that nothing of it is written any more.
FailAttempt(a) ==
  /\ Failures /\ calm < 0 /\ att[a].st = "begun" /\ kafka.of[IdOf(a)].state = "ongoing"
  /\ K!IsCurrent(kafka, TransactionOf(a))
  /\ att' = [att EXCEPT ![a].st = "failing"]
  /\ step' = [action |-> "FailAttempt", attempt |-> a]
  /\ UNCHANGED <<log, spark, launched, kafka, named, drv, sweeper, calm>>

AbortOwn(a) ==
  /\ calm < 0 /\ att[a].st = "failing" /\ AbortLive({TransactionOf(a)})
  /\ att' = [att EXCEPT ![a] = [Unborn EXCEPT !.st = "failed"]]
  /\ step' = [action |-> "AbortOwn", attempt |-> a]
  /\ UNCHANGED <<log, spark, launched, named, drv, sweeper, calm>>

\* Whether the driver that goes to name an attempt, or has named it, has found it open.
IsPrepared(a) ==
  a \in log.intent.staged \/ \E d \in Drivers : drv[d].at = "intend" /\ a \in drv[d].named

TimeOut(id) ==
  /\ calm < 0 /\ kafka.of[id].state = "ongoing"
  /\ \/ Timeouts = "any"
     \/ Timeouts = "batch" /\ \A a \in Atts : IdOf(a) = id /\ att[a].st = "staged" => ~IsPrepared(a)
  /\ kafka' = K!TimeOut(kafka, id)
  /\ step' = [action |-> "TimeOut", id |-> id]
  /\ UNCHANGED <<log, spark, launched, att, named, drv, sweeper, calm>>

\* --- committer

\* One attempt of each task has won; a task whose part is kept has only compared.
Collect(d) ==
  LET r == drv[d]
      missing == launched[r.turn].tasks
  IN /\ r.at = "stage"
     /\ \E w \in [missing -> Numbers] :
          LET won == {<<r.turn, t, w[t]>> : t \in missing} IN
          /\ \A a \in won : att[a].st = "staged"
          /\ Now(d, [r EXCEPT !.at = "held", !.named = @ \cup won])
     /\ Did("Collect", d)
     /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

\* A task has failed: abort() runs in a process of its own, and the driver stops.
FailTasks(d) ==
  /\ calm < 0 /\ drv[d].at = "stage" /\ sweeper.at = "off" /\ Failures
  /\ sweeper' = [Idle EXCEPT !.at = "list", !.gen = drv[d].gen]
  /\ Now(d, Nowhere) /\ Did("FailTasks", d)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, calm>>

\* _Write._commit. Its process has the state of the planner, by which the epoch is not committed if it
\* was staged: a later entry of another driver has taken the number of the intent.
Commit(d) ==
  LET r == drv[d] IN
  /\ r.at = "held" /\ Now(d, [r EXCEPT !.at = IF r.named = {} THEN "owned" ELSE "prepare"])
  /\ Did("Commit", d)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

CheckOwner(d) ==   \* rule 7
  /\ drv[d].at = "owned" /\ Did("CheckOwner", d)
  /\ Now(d, IF log.owner = drv[d].gen \/ ~Rule("owner") THEN [drv[d] EXCEPT !.at = "done"] ELSE Failed)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

\* _discard_refused: what was staged is aborted, and the query stops. Nobody else can name it.
Reject(d, r) ==
  /\ Now(d, Failed) /\ kafka' = K!EndAll(kafka, {TransactionOf(a) : a \in r.named}, FALSE)

Prepare(d) ==
  LET r == drv[d]
      kept == IF log.keptEpoch = r.epoch THEN log.kept ELSE {}
      fresh == r.named \ kept
      fine == kept \subseteq r.named /\ \A a \in fresh : Outcome(a) = "open"
  IN /\ r.at = "prepare" /\ Did("Prepare", d)
     /\ IF fine \/ ~Rule("prepare")
        THEN Now(d, [r EXCEPT !.at = "intend", !.named = fresh]) /\ UNCHANGED kafka
        ELSE Reject(d, r)
     /\ UNCHANGED <<log, spark, launched, att, named, sweeper, calm>>

MayIntend(r) == r.epoch > log.held /\ (Rule("fence") => log.owner = r.gen /\ log.number = r.gen)

Intend(d) ==   \* the linearization point
  LET r == drv[d]
      s == AfterIntent(log, r.epoch, r.named)
  IN /\ r.at = "intend" /\ Did("Intend", d)
     /\ IF MayIntend(r)
        THEN /\ log' = s /\ named' = named \cup r.named /\ UNCHANGED kafka
             /\ Now(d, [r EXCEPT !.at = "finish", !.back = "done", !.number = s.number, !.todo = r.named])
        ELSE UNCHANGED <<log, named>> /\ Reject(d, r)
     /\ UNCHANGED <<spark, launched, att, sweeper, calm>>

\* A commit that failed after its intent: nothing is touched, unless the rule is off.
FailCommit(d) ==
  /\ ~Rule("untouched") /\ drv[d].at = "finish" /\ drv[d].back = "done"
  /\ Now(d, Nowhere) /\ Did("FailCommit", d)
  /\ kafka' = K!EndAll(kafka, {TransactionOf(a) : a \in drv[d].todo}, FALSE)
  /\ UNCHANGED <<log, spark, launched, att, named, sweeper, calm>>

\* --- finishing an intent: of this driver, or of an earlier one

Recover(d) ==
  LET r == drv[d]
      are(what) == {a \in r.named : Outcome(a) = what}
      lost == are("aborted") # {} /\ are("committed") = {}
  IN /\ r.at = "recover" /\ Did("Recover", d)
     /\ Now(d, IF lost /\ are("open") # {} THEN [r EXCEPT !.at = "discard", !.todo = are("open")]
               ELSE [r EXCEPT !.at = "finish", !.todo = r.named])
     /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

Discard(d) ==
  LET r == drv[d] IN
  /\ r.at = "discard" /\ Now(d, [r EXCEPT !.at = "finish", !.todo = r.named]) /\ Did("Discard", d)
  /\ kafka' = K!EndAll(kafka, {TransactionOf(a) : a \in r.todo}, FALSE)
  /\ UNCHANGED <<log, spark, launched, att, named, sweeper, calm>>

Closing(r) == IF Rule("close") THEN [r EXCEPT !.at = "list", !.todo = {}, !.bad = {}]
              ELSE Leave([r EXCEPT !.todo = {}, !.bad = {}])

\* KafkaParticipant.finish: commit one of those that the intent names.
Finish(d, a) ==
  LET r == drv[d]
      x == TransactionOf(a)
      left == [r EXCEPT !.todo = @ \ {a},
                        !.bad = IF K!IsEnded(kafka, x, TRUE) THEN @ ELSE @ \cup {a}]
  IN /\ r.at = "finish" /\ a \in r.todo /\ kafka' = K!EndTxn(kafka, x, TRUE)
     /\ Now(d, IF left.todo # {} THEN left
               ELSE IF left.bad # {} THEN [left EXCEPT !.at = "settle"] ELSE Closing(left))
     /\ step' = [action |-> "Finish", driver |-> d, attempt |-> a]
     /\ UNCHANGED <<log, spark, launched, att, named, sweeper, calm>>

FinishNothing(d) ==   \* an intent that names nothing more than what is kept
  /\ drv[d].at = "finish" /\ drv[d].todo = {} /\ Now(d, Closing(drv[d])) /\ Did("FinishNothing", d)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

Settle(d) ==
  LET r == drv[d]
      lost == {a \in r.bad : Outcome(a) = "aborted"}
      unsure == {a \in r.bad : Outcome(a) \in {"open", "unknown"}}
  IN /\ r.at = "settle" /\ Did("Settle", d)
     /\ Now(d, IF unsure # {} THEN [Nowhere EXCEPT !.at = "unknown", !.gen = r.gen]
               ELSE IF lost = {} THEN Closing(r)
               ELSE IF r.back = "took" /\ Rule("void")
               THEN [r EXCEPT !.at = "void", !.todo = r.named \ lost, !.bad = {}]
               ELSE Failed)
     /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

Void(d) ==
  LET r == drv[d]
      kept == IF Rule("kept") THEN log.kept \cup r.todo ELSE {}
      next == [Nowhere EXCEPT !.at = "begin", !.epoch = r.epoch, !.noted = r.noted]
  IN /\ r.at = "void" /\ Did("Void", d)
     /\ IF log.number = r.gen THEN log' = AfterVoid(log, kept) /\ Now(d, next)
        ELSE UNCHANGED log /\ Now(d, Failed)
     /\ UNCHANGED <<spark, launched, kafka, att, named, sweeper, calm>>

\* --- the sweep (transactions.abort_open): of _abort_leftovers_and_wait after an epoch, and of sweep

IsClose(r) == r.number # 0
SweptBy(r) == IF IsClose(r) THEN r.number - 1 ELSE r.gen
AfterSweep(r) ==
  IF IsClose(r)
  THEN LET noted == IF r.back \in {"took", "planned"} THEN [r EXCEPT !.noted = r.number] ELSE r
       IN Leave([noted EXCEPT !.doomed = {}])
  ELSE [r EXCEPT !.at = r.back, !.back = "", !.doomed = {}]

AbortOpen(d) ==   \* which are open, and whose they are
  LET r == drv[d]
      won == IF IsClose(r) THEN {IdOf(a) : a \in r.named} ELSE {}
      doomed == {x \in K!Ongoing(kafka) : x.id \notin won}
  IN /\ r.at = "list" /\ Did("AbortOpen", d)
     /\ Now(d, IF doomed = {} THEN AfterSweep(r) ELSE [r EXCEPT !.at = "ask", !.doomed = doomed])
     /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

AskOwner(d) ==
  LET r == drv[d] IN
  /\ r.at = "ask" /\ Did("AskOwner", d)
  /\ Now(d, IF log.owner = SweptBy(r) \/ ~Rule("ask") THEN [r EXCEPT !.at = "abort"] ELSE AfterSweep(r))
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

AbortListed(d) ==
  LET r == drv[d] IN
  /\ r.at = "abort" /\ Now(d, AfterSweep(r)) /\ AbortLive(r.doomed) /\ Did("AbortListed", d)
  /\ UNCHANGED <<log, spark, launched, att, named, sweeper, calm>>

CloseFails(d) ==   \* best effort: the epoch is visible whatever happens there
  /\ calm < 0 /\ Failures /\ drv[d].at = "list" /\ IsClose(drv[d]) /\ Now(d, AfterSweep(drv[d])) /\ Did("CloseFails", d)
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, sweeper, calm>>

\* --- KafkaParticipant.abandon, in a process of its own

Abandon ==
  LET doomed == K!Ongoing(kafka) IN
  /\ sweeper.at = "list" /\ step' = [action |-> "Abandon"]
  /\ sweeper' = IF doomed = {} THEN Idle ELSE [sweeper EXCEPT !.at = "ask", !.doomed = doomed]
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, drv, calm>>

AbandonAsk ==
  /\ sweeper.at = "ask" /\ step' = [action |-> "AbandonAsk"]
  /\ sweeper' = IF log.owner = sweeper.gen \/ ~Rule("ask") THEN [sweeper EXCEPT !.at = "abort"] ELSE Idle
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, drv, calm>>

AbandonAbort ==
  /\ sweeper.at = "abort" /\ AbortLive(sweeper.doomed) /\ sweeper' = Idle
  /\ step' = [action |-> "AbandonAbort"]
  /\ UNCHANGED <<log, spark, launched, att, named, drv, calm>>

\* From now on one driver runs at a time, its tasks succeed, and nothing old stirs.
Calm ==
  /\ calm < 0 /\ Wild < Owners /\ spark < Epochs /\ calm' = log.begun
  /\ \A d \in Drivers : drv[d].at = "off"
  /\ sweeper.at = "off" /\ step' = [action |-> "Calm"]
  /\ UNCHANGED <<log, spark, launched, kafka, att, named, drv, sweeper>>

Next ==
  \/ \E d \in Drivers :
       \/ Start(d) \/ Crash(d) \/ Committed(d) \/ Begin(d) \/ Plan(d)
       \/ Collect(d) \/ FailTasks(d) \/ Commit(d) \/ CheckOwner(d)
       \/ Prepare(d) \/ Intend(d) \/ FailCommit(d)
       \/ Recover(d) \/ Discard(d) \/ (\E a \in drv[d].todo : Finish(d, a)) \/ FinishNothing(d)
       \/ Settle(d) \/ Void(d)
       \/ AbortOpen(d) \/ AskOwner(d) \/ AbortListed(d) \/ CloseFails(d)
  \/ \E a \in Atts : Look(a) \/ InitProducerId(a) \/ FailAttempt(a) \/ AbortOwn(a) \/ (\E part \in Parts : Produce(a, part))
  \/ \E id \in Ids : TimeOut(id)
  \/ Abandon \/ AbandonAsk \/ AbandonAbort \/ Calm

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------ what holds

\* Attempts that show a row of a task in an epoch.
Shown(epoch, t, piece) ==
  {a \in Atts : a[2] = t /\ launched[a[1]].epoch = epoch /\ <<a, piece>> \in kafka.visible}

NoDuplicate == \A e \in 1..Epochs, t \in Tasks, p \in Parts : Cardinality(Shown(e, t, p)) <= 1
NoLoss == \A e \in 1..spark, p \in Parts : \A t \in Rows(e) : Shown(e, t, p) # {}
OnlyNamed == \A row \in kafka.visible : row[1] \in named
NothingHangs == K!Hanging(kafka) = {}

\* Whoever owns the log can tell what became of each transaction that it has to end.
OwnerDecides == \A d \in Drivers : drv[d].at = "unknown" => drv[d].gen # log.owner

\* What an intent names is open until it is visible; brokers that time out after it are the one
\* exception.
IntentsAreWhole == \A a \in log.intent.staged, p \in Parts :
  <<a, p>> \in kafka.visible \/ \E r \in kafka.open : r.row = <<a, p>>

\* Once nothing goes wrong any more, the next driver gets on, and leaves nothing open.
Recovers == calm >= 0 => \A d \in Drivers :
  drv[d].at \notin {"error", "unknown"} /\ ~(drv[d].at = "begin" /\ log.begun = Owners)
SweptBefore == calm >= 0 => \A d \in Drivers :
  drv[d].at = "stage" /\ (\A a \in Atts : a[1] = drv[d].turn => att[a].st = "none") => K!Ongoing(kafka) = {}
SweptAfter == calm >= 0 => \A d \in Drivers : drv[d].at = "done" => K!Ongoing(kafka) = {}

\* Whoever goes on to the next epoch has published this one, or owned the log when it asked (rule 7).
OnlyOwnersGoOn == [][\A d \in Drivers : drv[d].at # "done" /\ drv'[d].at = "done" =>
                        drv[d].back = "done" \/ log.owner = drv[d].gen]_vars

\* No attempt that may begin would abort one that an intent names or may still name.
Alive(a) == a \in log.intent.staged \/ (a[1] = log.begun /\ att[a].st \in {"begun", "staged"})
Undisturbed ==
  \A a, b \in Atts : Alive(b) =>
    LET slot == IF att[a].st = "looked" THEN att[a].slot ELSE FirstFree(a) IN
    ~(/\ att[a].st = "looked" \/ MayBegin(a)
      /\ Id(a, slot) = IdOf(b) /\ \E r \in kafka.open : r.row[1] = b)

Symmetric == Permutations(Drivers) \cup Permutations(Tasks)
===============================================================================
