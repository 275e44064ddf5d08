--------------------------------- MODULE Files ---------------------------------
(* The epoch log and the Parquet sink over it: files that are staged in a folder of their generation,
   renamed after an intent, and swept by generation; a batch job beside the stream, whose intent
   others finish.

     Begin, RollForward, Commit    sinks/logged.py
     Stage, Prepare, Reveal, Remove, TakeAway, MakeFolder, Sweep, FinishJobs, Forget  sinks/parquet/disk_table.py

   The logs are values here, and an append is one step: Journal shows that it is. A generation is
   known by its turn, which grows as its number does. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Drivers,   \* of the stream
  Jobs,      \* drivers of batch jobs: each has a query of its own, and one life
  Tasks,
  Wild,      \* most owner entries of the stream while anything may go wrong
  Owners,    \* most owner entries of the stream
  Epochs,
  Attempts,
  Age,       \* how many turns older than the newest a task may be that still stages
  Replace,   \* whether an epoch takes the place of those before (mode REPLACE)
  Vanish,    \* whether staged files may vanish before the committer looks at them
  Off        \* the rules that are switched off

VARIABLES
  log,       \* by query, State
  spark,     \* newest epoch in commits/ of the stream
  launched,  \* by query and turn, the epoch whose tasks were started; 0 for none
  folders,   \* of generations, under staged/
  staged,    \* files in them
  visible,   \* files under their final names
  done,      \* attempts that have ended
  named,     \* history: files that an intent has named
  taken,     \* history: folders that were taken away, the mark that their intent is finished
  proc, calm, step

vars == <<log, spark, launched, folders, staged, visible, done, named, taken, proc, calm, step>>
View == <<log, spark, launched, folders, staged, visible, done, named, taken, proc, calm>>

Rule(name) == name \notin Off
Procs == Drivers \cup Jobs
Stream == "stream"
Queries == {Stream} \cup Jobs
QueryOf(p) == IF p \in Drivers THEN Stream ELSE p
TurnsOf(q) == IF q = Stream THEN 1..Owners ELSE {1}
Files == {<<q, g, t, k>> : q \in {Stream}, g \in 1..Owners, t \in Tasks, k \in 1..Attempts}
         \cup {<<q, 1, t, k>> : q \in Jobs, t \in Tasks, k \in 1..Attempts}
FolderOf(f) == <<f[1], f[2]>>

NoIntent == [gen |-> 0, epoch |-> 0, files |-> {}, removes |-> {}]
EmptyLog == [begun |-> 0, last |-> "none", intent |-> NoIntent, held |-> 0, settled |-> 0]
Nowhere == [at |-> "off", epoch |-> 0, gen |-> 0, noted |-> 0, again |-> FALSE, held |-> 0,
            named |-> {}, back |-> "", of |-> Stream, intent |-> NoIntent, todo |-> {}]

Init == /\ log = TLCEval([q \in Queries |-> EmptyLog]) /\ spark = 0
        /\ launched = TLCEval([q \in Queries |-> [g \in TurnsOf(q) |-> 0]])
        /\ folders = {} /\ staged = {} /\ visible = {} /\ done = {} /\ named = {} /\ taken = {}
        /\ proc = TLCEval([p \in Procs |-> Nowhere]) /\ calm = -1 /\ step = [action |-> "Init"]

Did(action, p) == step' = [action |-> action, process |-> p]
Now(p, record) == proc' = [proc EXCEPT ![p] = record]
Over == [Nowhere EXCEPT !.at = "over"]   \* a job that is over, well or not: it is not run again
Ends(p) == IF p \in Jobs THEN Over ELSE Nowhere
Failed(p) == IF calm < 0 THEN Ends(p) ELSE [Nowhere EXCEPT !.at = "error"]

\* ------------------------------------------------------------------ finishing an intent

IsFinished(s, noted) == s.intent.gen = 0 \/ s.settled >= s.intent.gen \/ s.intent.gen = noted

\* ParquetWriter.finished: the folder's absence is the mark.
IsGone(q, intent) == <<q, intent.gen>> \notin folders

Plain(r) == [r EXCEPT !.back = "", !.of = Stream, !.intent = NoIntent, !.todo = {}]

Leave(r) ==
  LET next == Plain(r) IN
  CASE r.back = "took" /\ r.again -> [next EXCEPT !.at = "begin", !.again = FALSE]
    [] r.back = "took" -> [next EXCEPT !.at = "make"]
    [] OTHER -> [next EXCEPT !.at = r.back]

\* ParquetWriter.finish: three phases, in this order. Two rules say so, and can be switched off.
Phases == IF ~Rule("last") THEN <<"take", "reveal", "remove">>
          ELSE IF ~Rule("newfirst") THEN <<"remove", "reveal", "take">> ELSE <<"reveal", "remove", "take">>

Phase(r, n) ==
  CASE n > 3 -> Leave(r)
    [] Phases[n] = "reveal" -> [r EXCEPT !.at = "reveal", !.todo = r.intent.files]
    [] Phases[n] = "remove" -> [r EXCEPT !.at = "remove", !.todo = r.intent.removes]
    [] OTHER -> [r EXCEPT !.at = "take", !.todo = {}]
After(r, phase) == Phase(r, 1 + CHOOSE n \in 1..3 : Phases[n] = phase)
Finish(r, intent) == Phase([r EXCEPT !.intent = intent], 1)

\* The next phase begins in the same step as this one ends.
RECURSIVE Skip(_)
Skip(r) == IF r.at \in {"reveal", "remove"} /\ r.todo = {} THEN Skip(After(r, r.at)) ELSE r

RollForward(r, q, s, noted, back) ==
  IF IsFinished(s, noted) \/ IsGone(q, s.intent)
  THEN Leave([r EXCEPT !.back = back, !.noted = IF back = "took" THEN s.intent.gen ELSE @])
  ELSE Skip(Finish([r EXCEPT !.back = back, !.of = q], s.intent))

\* _reveal_one: a file that is gone was renamed before.
Reveal(p, f) ==
  LET r == proc[p] IN
  /\ r.at = "reveal" /\ f \in r.todo /\ Now(p, Skip([r EXCEPT !.todo = @ \ {f}]))
  /\ staged' = staged \ {f} /\ visible' = IF f \in staged THEN visible \cup {f} ELSE visible
  /\ step' = [action |-> "Reveal", process |-> p, file |-> f]
  /\ UNCHANGED <<log, spark, launched, folders, done, named, taken, calm>>

Remove(p, f) ==
  LET r == proc[p] IN
  /\ r.at = "remove" /\ f \in r.todo /\ Now(p, Skip([r EXCEPT !.todo = @ \ {f}]))
  /\ visible' = visible \ {f}
  /\ step' = [action |-> "Remove", process |-> p, file |-> f]
  /\ UNCHANGED <<log, spark, launched, folders, staged, done, named, taken, calm>>

TakeAway(p) ==   \* in one step: its absence says that the intent is finished
  LET r == proc[p]
      gone == <<r.of, r.intent.gen>>
      noted == IF r.back = "took" THEN [r EXCEPT !.noted = r.intent.gen] ELSE r
  IN /\ r.at = "take" /\ Now(p, Skip(After(noted, "take"))) /\ Did("TakeAway", p)
     /\ folders' = folders \ {gone} /\ taken' = taken \cup {gone}
     /\ staged' = {f \in staged : FolderOf(f) # gone}
     /\ UNCHANGED <<log, spark, launched, visible, done, named, calm>>

\* ------------------------------------------------------------------ Spark

Start(p) ==
  /\ proc[p].at = "off" /\ (p \in Drivers => spark < Epochs)
  /\ calm < 0 \/ (p \in Drivers /\ \A o \in Drivers : proc[o].at = "off")
  /\ Now(p, [Nowhere EXCEPT !.at = "begin", !.epoch = IF p \in Jobs THEN 1 ELSE spark + 1])
  /\ Did("Start", p)
  /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, calm>>

Crash(p) ==
  /\ calm < 0 /\ proc[p].at \notin {"off", "begin", "over", "held", "prepare", "intend"}
  /\ Now(p, Ends(p)) /\ Did("Crash", p)
  /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, calm>>

Committed(p) ==
  LET r == proc[p]
      next == [Nowhere EXCEPT !.at = "begin", !.epoch = r.epoch + 1, !.noted = r.noted]
  IN /\ r.at = "done" /\ p \in Drivers /\ spark' = IF r.epoch > spark THEN r.epoch ELSE spark
     /\ Now(p, IF r.epoch < Epochs THEN next ELSE Nowhere) /\ Did("Committed", p)
     /\ UNCHANGED <<log, launched, folders, staged, visible, done, named, taken, calm>>

\* ------------------------------------------------------------------ planner

Begin(p) ==
  LET r == proc[p]
      q == QueryOf(p)
      settled == IF IsFinished(log[q], r.noted) THEN log[q].intent.gen ELSE 0
      s == [log[q] EXCEPT !.begun = @ + 1, !.last = "owner",
                          !.settled = IF settled > @ THEN settled ELSE @]
      known == log[q].last = "intent" \/ s.settled >= s.intent.gen
      mine == [r EXCEPT !.gen = s.begun, !.again = ~known]
  IN /\ r.at = "begin" /\ s.begun <= (IF p \in Jobs THEN 1 ELSE IF calm < 0 THEN Wild ELSE Owners)
     /\ log' = [log EXCEPT ![q] = s] /\ Did("Begin", p)
     /\ Now(p, IF Rule("recover") THEN RollForward(mine, q, s, r.noted, "took")
               ELSE [mine EXCEPT !.at = "make", !.again = FALSE])
     /\ UNCHANGED <<spark, launched, folders, staged, visible, done, named, taken, calm>>

MakeFolder(p) ==   \* and look which are of earlier generations
  LET r == proc[p]
      q == QueryOf(p)
      older == {g \in folders : g[1] = q /\ IF Rule("generation") THEN g[2] < r.gen ELSE g[2] # r.gen}
  IN /\ r.at = "make" /\ folders' = folders \cup {<<q, r.gen>>} /\ Did("MakeFolder", p)
     /\ Now(p, IF older = {} THEN [r EXCEPT !.at = "jobs"] ELSE [r EXCEPT !.at = "sweep", !.todo = older])
     /\ UNCHANGED <<log, spark, launched, staged, visible, done, named, taken, calm>>

Sweep(p, g) ==
  LET r == proc[p]
      left == [r EXCEPT !.todo = @ \ {g}]
  IN /\ r.at = "sweep" /\ g \in r.todo /\ folders' = folders \ {g}
     /\ staged' = {f \in staged : FolderOf(f) # g}
     /\ Now(p, IF left.todo = {} THEN [left EXCEPT !.at = "jobs"] ELSE left)
     /\ step' = [action |-> "Sweep", process |-> p, generation |-> g]
     /\ UNCHANGED <<log, spark, launched, visible, done, named, taken, calm>>

\* Jobs whose driver died after its intent, or is about to finish it itself.
FinishJobs(p) ==
  LET r == proc[p]
      waiting == {j \in Jobs \ {p} : log[j].intent.gen # 0 /\ <<j, 1>> \in folders}
  IN /\ r.at = "jobs" /\ Did("FinishJobs", p)
     /\ IF waiting = {} \/ ~Rule("jobs") THEN Now(p, [r EXCEPT !.at = "plan"])
        ELSE \E j \in waiting : Now(p, RollForward(r, j, log[j], 0, "jobs"))
     /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, calm>>

Plan(p) ==
  LET q == QueryOf(p)
      read == proc[p].at = "plan"
      r == IF read THEN RollForward([proc[p] EXCEPT !.held = log[q].held], q, log[q], proc[p].noted, "planned")
           ELSE proc[p]
      stages == r.epoch > r.held
  IN /\ proc[p].at \in {"plan", "planned"} /\ Did("Plan", p)
     /\ Now(p, IF r.at # "planned" THEN r
               ELSE [r EXCEPT !.at = IF stages THEN "stage" ELSE "held", !.held = 0])
     /\ launched' = IF r.at = "planned" /\ stages THEN [launched EXCEPT ![q][r.gen] = r.epoch] ELSE launched
     /\ UNCHANGED <<log, spark, folders, staged, visible, done, named, taken, calm>>

\* ------------------------------------------------------------------ executor

Stage(f) ==
  LET there == FolderOf(f) \in folders IN
  /\ f \notin done /\ launched[f[1]][f[2]] # 0 /\ log[f[1]].begun - f[2] <= Age
  /\ f[1] = Stream => f[2] > calm
  /\ f[4] = 1 \/ <<f[1], f[2], f[3], f[4] - 1>> \in done
  /\ staged' = IF there \/ ~Rule("nofolder") THEN staged \cup {f} ELSE staged
  /\ folders' = IF Rule("nofolder") THEN folders ELSE folders \cup {FolderOf(f)}
  /\ done' = done \cup {f} /\ step' = [action |-> "Stage", file |-> f, there |-> there]
  /\ UNCHANGED <<log, spark, launched, visible, named, taken, proc, calm>>

\* Somebody cleans up who should not; what is lost later than this nobody can help.
Vanishes(f) ==
  /\ Vanish /\ f \in staged /\ staged' = staged \ {f} /\ f \notin named
  /\ \A p \in Procs : proc[p].at # "intend"
  /\ step' = [action |-> "Vanishes", file |-> f]
  /\ UNCHANGED <<log, spark, launched, folders, visible, done, named, taken, proc, calm>>

\* ------------------------------------------------------------------ committer

Collect(p) ==
  LET r == proc[p]
      q == QueryOf(p)
  IN /\ r.at = "stage" /\ Did("Collect", p)
     /\ \E w \in [Tasks -> 1..Attempts] :
          LET won == {<<q, r.gen, t, w[t]>> : t \in Tasks} IN
          /\ won \subseteq done
          /\ Now(p, [r EXCEPT !.at = "held", !.named = won])
     /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, calm>>

Discard(r) == staged' = staged \ r.named

\* By the state of the planner, as in EpochLog.
Commit(p) ==
  LET r == proc[p] IN
  /\ r.at = "held" /\ Now(p, [r EXCEPT !.at = IF r.named = {} THEN "owned" ELSE "prepare"])
  /\ Did("Commit", p)
  /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, calm>>

CheckOwner(p) ==
  LET r == proc[p] IN
  /\ r.at = "owned" /\ Did("CheckOwner", p)
  /\ Now(p, IF log[QueryOf(p)].begun = r.gen THEN [r EXCEPT !.at = "done"] ELSE Failed(p))
  /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, calm>>

\* _check_whole, and in mode REPLACE what will go; what was refused is removed.
Prepare(p) ==
  LET r == proc[p]
      q == QueryOf(p)
      whole == r.named \subseteq staged \/ ~Rule("prepare")
      removes == IF Replace /\ q = Stream THEN {f \in visible : f[1] = q} ELSE {}
  IN /\ r.at = "prepare" /\ Did("Prepare", p)
     /\ IF whole THEN UNCHANGED staged /\ Now(p, [r EXCEPT !.at = "intend", !.todo = removes])
        ELSE Discard(r) /\ Now(p, Failed(p))
     /\ UNCHANGED <<log, spark, launched, folders, visible, done, named, taken, calm>>

Intend(p) ==   \* the linearization point
  LET r == proc[p]
      q == QueryOf(p)
      fits == r.epoch > log[q].held
              /\ (Rule("fence") => log[q].begun = r.gen /\ log[q].last = "owner")
      intent == [gen |-> r.gen, epoch |-> r.epoch, files |-> r.named, removes |-> r.todo]
  IN /\ r.at = "intend" /\ Did("Intend", p)
     /\ IF fits
        THEN /\ log' = [log EXCEPT ![q].last = "intent", ![q].intent = intent, ![q].held = r.epoch]
             /\ named' = named \cup r.named /\ UNCHANGED staged
             /\ Now(p, Skip(Finish([r EXCEPT !.back = IF p \in Jobs THEN "forget" ELSE "done",
                                             !.of = q, !.named = {}], intent)))
        ELSE UNCHANGED <<log, named>> /\ Discard(r) /\ Now(p, Failed(p))
     /\ UNCHANGED <<spark, launched, folders, visible, done, taken, calm>>

\* A job is over: its log goes in one step, and its folder.
Forget(p) ==
  /\ proc[p].at = "forget" /\ log' = [log EXCEPT ![p] = EmptyLog] /\ Did("Forget", p)
  /\ folders' = {g \in folders : g[1] # p} /\ staged' = {f \in staged : f[1] # p}
  /\ Now(p, [Nowhere EXCEPT !.at = "over", !.held = 1])
  /\ UNCHANGED <<spark, launched, visible, done, named, taken, calm>>

Calm ==
  /\ calm < 0 /\ Wild < Owners /\ spark < Epochs /\ calm' = log[Stream].begun
  /\ \A p \in Procs : proc[p].at \in {"off", "over"}
  /\ step' = [action |-> "Calm"]
  /\ UNCHANGED <<log, spark, launched, folders, staged, visible, done, named, taken, proc>>

Next ==
  \/ \E p \in Procs :
       \/ (\E f \in proc[p].todo : Reveal(p, f) \/ Remove(p, f) \/ Sweep(p, f))
       \/ TakeAway(p) \/ Start(p) \/ Crash(p) \/ Committed(p) \/ Begin(p)
       \/ MakeFolder(p) \/ FinishJobs(p) \/ Plan(p) \/ Collect(p) \/ Commit(p) \/ CheckOwner(p)
       \/ Prepare(p) \/ Intend(p) \/ Forget(p)
  \/ \E f \in Files : Stage(f) \/ Vanishes(f)
  \/ Calm

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------ what holds

EpochOf(f) == launched[f[1]][f[2]]
Shown(q, e, t) == {f \in visible : f[1] = q /\ f[3] = t /\ EpochOf(f) = e}
Whole(e) == \A t \in Tasks : Shown(Stream, e, t) # {}

NoDuplicate == \A q \in Queries, e \in 1..Epochs, t \in Tasks : Cardinality(Shown(q, e, t)) <= 1
NoLoss == IF Replace THEN spark > 0 => \E e \in spark..Epochs : Whole(e)
          ELSE \A e \in 1..spark : Whole(e)
OnlyNamed == visible \subseteq named
\* A job that has reported success, and one whose intent is logged when nothing is left to do.
JobsAreWhole == \A j \in Jobs :
  (proc[j].at = "over" /\ proc[j].held = 1) \/ (log[j].intent.gen # 0 /\ <<j, 1>> \notin folders) =>
    \A t \in Tasks : Shown(j, 1, t) # {}
\* Mode REPLACE: when an epoch is done, nothing is left of earlier ones, nor comes back.
OldIsGone == Replace => \A f \in visible : f[1] = Stream => EpochOf(f) >= spark
\* The folder of a finished intent does not come back.
DoneIsDone == taken \cap folders = {}
Recovers == calm >= 0 => \A p \in Drivers :
  proc[p].at # "error" /\ ~(proc[p].at = "begin" /\ log[Stream].begun = Owners)
JobsAreFinished == calm >= 0 => \A p \in Drivers : proc[p].at = "done" =>
  \A j \in Jobs : log[j].intent.gen # 0 => \A t \in Tasks : Shown(j, 1, t) # {}

Symmetric == Permutations(Drivers) \cup Permutations(Tasks)
===============================================================================
