-------------------------------- MODULE Journal --------------------------------
(* The epoch log at the calls to its storage (offsets/epoch_log.py over offsets/journal.py): that an
   append is one step, and a state that was read is one that the log had.

     List, ListEnd, ReadKnown, ReadSnapshot, ReadEntry   StoredEntries.state: _look, _base, _entry
     ReadNext                                            EpochLog._expect_end
     Create, ReadBack                                    EpochLog._append
     LookAfter                                           StoredEntries.list_after
     Fold.., Snapshot, Remove                            EpochLog.fold, _remove_covered

   `log` is history: the entries that were created above every snapshot, in their order. What an
   entry says matters to nobody here but its kind and who created it. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Processes,
  MaxLog,     \* highest number
  FoldEvery,
  Folders,    \* who folds
  Lost,       \* whether an answer to create may be lost, so that a name is taken by its own creator
  Off         \* the rules that are switched off

VARIABLES
  log,        \* what is true: a sequence of [kind, by]
  entries,    \* by number: "none", "true" (it is that of the log), or "dead" (created too late)
  snapshots,  \* their numbers; one holds the log up to its number
  proc,
  wrong,      \* what somebody believed that is not so
  step

vars == <<log, entries, snapshots, proc, wrong, step>>
View == <<log, entries, snapshots, proc, wrong>>

Rule(name) == name \notin Off
Highest(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
Lowest(S) == CHOOSE x \in S : \A y \in S : x <= y
OwnerUpTo(n) == Highest({i \in 1..n : log[i].kind = "owner"})

There == [entries |-> {n \in 1..MaxLog : entries[n] # "none"}, snapshots |-> snapshots]
Nothing == [entries |-> {}, snapshots |-> {}]

Rest == [at |-> "rest", op |-> "", gen |-> 0, known |-> 0, since |-> 0, base |-> 0,
         first |-> Nothing, listing |-> Nothing, counts |-> FALSE, dead |-> FALSE]

Init == /\ log = <<>> /\ entries = [n \in 1..MaxLog |-> "none"] /\ snapshots = {}
        /\ proc = [p \in Processes |-> Rest] /\ wrong = {} /\ step = [action |-> "Init"]

Did(action, p) == step' = [action |-> action, process |-> p]
Listed(action, p, l) == step' = [action |-> action, process |-> p, found |-> l]
Now(p, record) == proc' = [proc EXCEPT ![p] = record]

\* Only what outlives a call.
Resting(r) == [Rest EXCEPT !.gen = r.gen, !.known = r.known]

\* ------------------------------------------------------------------ listing, which is not one step

Look(r, at) == [r EXCEPT !.at = at, !.first = There, !.listing = Nothing, !.base = 0]

\* What is there all the time is found, what comes or goes meanwhile is found or not. No listing lasts
\* from before one fold until after the next one, which is FoldEvery entries later.
Listings(first) ==
  LET now == There
      either(x, y) == {s \cup (x \cap y) : s \in SUBSET ((x \ y) \cup (y \ x))}
  IN IF Cardinality(now.snapshots \ first.snapshots) > 1 THEN {}
     ELSE {[entries |-> e, snapshots |-> s] : e \in either(first.entries, now.entries),
                                              s \in either(first.snapshots, now.snapshots)}

\* ------------------------------------------------------------------ calls of a log

Call(p, op) ==
  LET r == proc[p] IN
  /\ r.at = "rest"
  /\ CASE op = "begin" -> TRUE
       [] op = "intend" -> r.gen # 0 /\ r.known = r.gen
       [] op = "check" -> r.gen # 0
       [] op = "fold" -> p \in Folders /\ r.gen # 0 /\ r.known = r.gen
  /\ \/ Now(p, [Look(r, IF op = "fold" THEN "foldlist" ELSE "list") EXCEPT !.op = op, !.since = Len(log)])
     \* What this process has seen before will do: if more has come since, the number is taken.
     \/ op = "intend" /\ Now(p, [r EXCEPT !.at = "create", !.op = op])
     \/ op = "begin" /\ r.known # 0 /\ r.known < MaxLog /\ log[r.known].kind = "owner"
        /\ Now(p, [r EXCEPT !.at = "next", !.op = op, !.since = Len(log)])
  /\ step' = [action |-> "Call", process |-> p, op |-> op]
  /\ UNCHANGED <<log, entries, snapshots, wrong>>

Die(p) ==
  /\ proc[p] # Rest /\ Now(p, Rest) /\ Did("Die", p)
  /\ UNCHANGED <<log, entries, snapshots, wrong>>

\* --- state()

Again(r) == Look(r, "list")

\* From a base on: entries without a gap, or another look.
ReadOn(r, base) ==
  LET later == {n \in r.listing.entries : n > base} IN
  IF later = (base + 1)..(base + Cardinality(later)) \/ ~Rule("gap")
  THEN [r EXCEPT !.at = "read", !.base = base, !.first = Nothing,
                 !.listing = [entries |-> later, snapshots |-> {}]]
  ELSE Again(r)

Based(r) ==
  LET newest == Highest(r.listing.snapshots) IN
  IF newest = 0 THEN ReadOn(r, 0) ELSE [r EXCEPT !.at = "snapshot", !.first = Nothing]

ListEnd(p) ==
  LET r == proc[p] IN
  /\ r.at = "list"
  /\ \E l \in Listings(r.first) : Listed("ListEnd", p, l) /\
       LET have == [r EXCEPT !.listing = l] IN
       Now(p, IF r.known > Highest(l.snapshots) /\ r.known \in l.entries
              THEN [have EXCEPT !.at = "known", !.first = Nothing] ELSE Based(have))
  /\ UNCHANGED <<log, entries, snapshots, wrong>>

ReadKnown(p) ==   \* is the entry at which this process stopped still the same one?
  LET r == proc[p] IN
  /\ r.at = "known" /\ Did("ReadKnown", p)
  /\ Now(p, IF entries[r.known] = "true" THEN ReadOn(r, r.known) ELSE Based(r))
  /\ UNCHANGED <<log, entries, snapshots, wrong>>

ReadSnapshot(p) ==
  LET r == proc[p]
      newest == Highest(r.listing.snapshots)
  IN /\ r.at = "snapshot" /\ Did("ReadSnapshot", p)
     /\ Now(p, IF newest \in snapshots THEN ReadOn(r, newest) ELSE Again(r))
     /\ UNCHANGED <<log, entries, snapshots, wrong>>

\* What a call does with the state that it has read, which may be wrong, or older than the call.
Have(p, r) ==
  LET have == [Resting(r) EXCEPT !.known = r.base]
      number == r.base + 1
      making == [r EXCEPT !.at = "create", !.known = r.base, !.listing = Nothing]
  IN /\ wrong' = IF r.base < r.since THEN wrong \cup {"stale"} ELSE wrong
     /\ Now(p, CASE r.op = "begin" -> making
                 [] r.op = "intend" -> IF r.gen = r.base \/ ~Rule("fence") THEN making ELSE [have EXCEPT !.gen = 0]
                 [] OTHER -> IF r.gen = OwnerUpTo(r.base) THEN have ELSE [have EXCEPT !.gen = 0])

ReadEntry(p) ==
  LET r == proc[p]
      next == Lowest(r.listing.entries)
      read == [r EXCEPT !.base = next, !.listing.entries = @ \ {next}]
  IN /\ r.at = "read" /\ Did("ReadEntry", p)
     /\ IF r.listing.entries = {} THEN Have(p, r)
        ELSE /\ Now(p, IF entries[next] = "none" THEN Again(r) ELSE read)
             /\ wrong' = wrong \cup (IF entries[next] = "dead" THEN {"dead"} ELSE {})
                              \cup (IF next # r.base + 1 THEN {"skipped"} ELSE {})
     /\ UNCHANGED <<log, entries, snapshots>>

\* The intent after the owner entry that this process knows. A dead entry may say anything.
ReadNext(p) ==
  LET r == proc[p]
      next == r.known + 1
      found == entries[next]
      guess == [r EXCEPT !.at = "create", !.base = r.known, !.known = next, !.dead = found = "dead"]
  IN /\ r.at = "next" /\ Did("ReadNext", p)
     /\ \/ found = "dead" /\ Now(p, guess)
        \/ Now(p, IF found = "true" /\ log[next].kind = "intent" THEN guess ELSE Again(r))
     /\ UNCHANGED <<log, entries, snapshots, wrong>>

\* --- _append

Number(r) == r.known + 1

Create(p) ==
  LET r == proc[p]
      number == Number(r)
      free == entries[number] = "none"
      counts == number > Highest(snapshots)
      kind == IF r.op = "begin" THEN "owner" ELSE "intent"
      created == [r EXCEPT !.counts = counts]
      after == IF Rule("lookafter") THEN Look(created, "after") ELSE [created EXCEPT !.at = "accept"]
  IN /\ r.at = "create" /\ number <= MaxLog
     /\ IF free \/ ~Rule("exclusive")
        THEN /\ log' = IF free /\ counts THEN Append(log, [kind |-> kind, by |-> p]) ELSE log
             /\ wrong' = IF (free /\ counts /\ number # Len(log) + 1) \/ ~free
                         THEN wrong \cup {"forked"} ELSE wrong
             /\ entries' = [entries EXCEPT ![number] = IF counts THEN "true" ELSE "dead"]
             /\ \/ Now(p, after)
                \/ Lost /\ Now(p, [created EXCEPT !.at = "back"])
        ELSE Now(p, [r EXCEPT !.at = "refuse", !.counts = FALSE]) /\ UNCHANGED <<log, entries, wrong>>
     /\ step' = [action |-> "Create", process |-> p, number |-> number, kind |-> kind]
     /\ UNCHANGED snapshots

\* The store says that the name is taken: by our own first try?
ReadBack(p) ==
  LET r == proc[p]
      same == entries[Number(r)] = (IF r.counts THEN "true" ELSE "dead")
  IN /\ r.at = "back" /\ Did("ReadBack", p)
     /\ Now(p, IF same /\ Rule("content") THEN Look(r, "after") ELSE [r EXCEPT !.at = "refuse"])
     /\ UNCHANGED <<log, entries, snapshots, wrong>>

\* --- _was_folded

LookAfter(p) ==
  LET r == proc[p] IN
  /\ r.at = "after"
  /\ \E l \in Listings(r.first) : Listed("LookAfter", p, l) /\
       LET newest == Highest(l.snapshots)
           follows == r.known = newest \/ r.known \in l.entries
           then(at) == [r EXCEPT !.first = Nothing, !.at = at]
       IN Now(p, IF newest >= Number(r) THEN then("refuse")
                 ELSE IF follows THEN then("accept") ELSE Look(r, "after"))
  /\ UNCHANGED <<log, entries, snapshots, wrong>>

\* An append that its process believes in has to be in the log.
Accept(p) ==
  LET r == proc[p]
      known == [Resting(r) EXCEPT !.known = Number(r)]
  IN /\ r.at = "accept" /\ Did("Accept", p)
     \* The planner does not learn of the intent of its committer.
     /\ \/ Now(p, IF r.op = "begin" THEN [known EXCEPT !.gen = Number(r)] ELSE known)
        \/ r.op = "intend" /\ Now(p, Resting(r))
     /\ wrong' = wrong \cup (IF r.counts THEN {} ELSE {"accepted"})
                      \cup (IF r.dead THEN {"dead"} ELSE {})
     /\ UNCHANGED <<log, entries, snapshots>>

\* One that it does not believe in is not there, or is settled: what is folded is finished.
Refuse(p) ==
  LET r == proc[p] IN
  /\ r.at = "refuse" /\ Did("Refuse", p)
  /\ Now(p, [Resting(r) EXCEPT !.gen = 0, !.known = IF r.op = "begin" THEN r.base ELSE @])
  /\ wrong' = IF r.op = "intend" /\ r.counts /\ Number(r) > Highest(snapshots)
              THEN wrong \cup {"refused"} ELSE wrong
  /\ UNCHANGED <<log, entries, snapshots>>

\* --- fold

\* `base` is the newest snapshot that the fold has seen; `listing` what is left to be removed. A fold
\* removes some of that, and leaves the rest to those that come after it.
None(l) == l.entries = {} /\ l.snapshots = {}

FoldList(p) ==
  LET r == proc[p] IN
  /\ r.at = "foldlist"
  /\ \E l \in Listings(r.first) : Listed("FoldList", p, l) /\
       LET newest == Highest(l.snapshots)
           due == r.gen - newest >= FoldEvery
           before == IF due THEN newest ELSE Highest(l.snapshots \ {newest})
           covered == [entries |-> {n \in l.entries : n <= IF due /\ ~Rule("lag") THEN r.gen ELSE before},
                       snapshots |-> {n \in l.snapshots : n < before \/ (due /\ ~Rule("older"))}]
           going == [r EXCEPT !.first = Nothing, !.base = newest, !.listing = covered,
                              !.at = IF due /\ (Rule("snapshotfirst") \/ None(covered)) THEN "write" ELSE "remove"]
       IN Now(p, IF due \/ ~None(covered) THEN going ELSE Resting(r))
  /\ UNCHANGED <<log, entries, snapshots, wrong>>

Snapshot(p) ==
  LET r == proc[p] IN
  /\ r.at = "write" /\ snapshots' = snapshots \cup {r.gen} /\ Did("Snapshot", p)
  /\ Now(p, IF Rule("snapshotfirst") /\ ~None(r.listing) THEN [r EXCEPT !.at = "remove"] ELSE Resting(r))
  /\ UNCHANGED <<log, entries, wrong>>

Remove(p, n) ==
  LET r == proc[p]
      left == [r EXCEPT !.listing.entries = @ \ {n}]
      done == IF Rule("snapshotfirst") THEN Resting(r) ELSE [r EXCEPT !.at = "write"]
      more == left.listing.entries # {} \/ left.listing.snapshots # {}
  IN /\ r.at = "remove" /\ n \in r.listing.entries   \* one request may remove many, in any order
     /\ entries' = [entries EXCEPT ![n] = "none"]
     /\ \E stops \in IF Rule("snapshotfirst") THEN {TRUE, FALSE} ELSE {FALSE} :
          Now(p, IF more /\ ~stops THEN left ELSE done)
     /\ step' = [action |-> "Remove", process |-> p, number |-> n]
     /\ UNCHANGED <<log, snapshots, wrong>>

RemoveSnapshot(p, n) ==
  LET r == proc[p]
      left == [r EXCEPT !.listing.snapshots = @ \ {n}]
      done == IF Rule("snapshotfirst") THEN Resting(r) ELSE [r EXCEPT !.at = "write"]
  IN /\ r.at = "remove" /\ n \in r.listing.snapshots
     /\ snapshots' = snapshots \ {n}
     /\ Now(p, IF None(left.listing) THEN done ELSE left)
     /\ step' = [action |-> "RemoveSnapshot", process |-> p, number |-> n]
     /\ UNCHANGED <<log, entries, wrong>>

Next ==
  \E p \in Processes :
    \/ \E op \in {"begin", "intend", "check", "fold"} : Call(p, op)
    \/ Die(p)
    \/ ListEnd(p) \/ ReadKnown(p) \/ ReadSnapshot(p) \/ ReadEntry(p) \/ ReadNext(p)
    \/ Create(p) \/ ReadBack(p) \/ LookAfter(p) \/ Accept(p) \/ Refuse(p)
    \/ FoldList(p) \/ Snapshot(p) \/ (\E n \in 1..MaxLog : Remove(p, n) \/ RemoveSnapshot(p, n))

Spec == Init /\ [][Next]_vars

OneOrder == "forked" \notin wrong /\ "accepted" \notin wrong
NothingDeadIsRead == "dead" \notin wrong
NothingIsSkipped == "skipped" \notin wrong
NothingOldIsRead == "stale" \notin wrong
RefusedIsNotTrue == "refused" \notin wrong
\* Rule 1, of what is true: each intent right after an owner entry of the same process.
IntentsBehindOwners ==
  \A i \in 1..Len(log) : log[i].kind = "intent" =>
    i > 1 /\ log[i - 1] = [kind |-> "owner", by |-> log[i].by]

Symmetric == Permutations(Processes)
===============================================================================
