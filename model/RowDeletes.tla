------------------------------- MODULE RowDeletes -------------------------------
(* Row-level deletes of the Iceberg sink: an epoch replaces the rows of its keys, by their positions in
   files that stay, or by new files for those with such rows. Other programs append and delete, and a
   compaction rewrites files, between planning and commit.

     Plan, Commit           MergeOnRead and CopyOnWrite, then EpochCommit._compare_and_set
     Choose, Replace        Compaction._rewrite, _commit, _LiveFiles.has
     Append, Delete         other programs; each sees the newest table, as any commit has to

   The marks of epochs, lost answers and drivers that die are in CompareAndSet. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Keys,
  Epochs,        \* of the stream
  Appends,       \* how many rows other programs append, each in another file
  Deletes,       \* how many rows other programs delete by their position
  Compactions,
  Copies,        \* whether epochs write new files instead of positions
  Off            \* the rules that are switched off

VARIABLES
  table,         \* [head, files, deletes, next]; what the catalog has, and the next file's id
  wanted,        \* history: the rows that the table should have, by the order of the commits
  up,            \* the epoch that is being committed
  co,            \* the compaction
  left,          \* what may still happen
  step

vars == <<table, wanted, up, co, left, step>>
View == <<table, wanted, up, co, left>>

Rule(name) == name \notin Off

\* A row is known by its key and by the commit that added it.
Row(key, born) == [key |-> key, born |-> born]
File(id, rows, seq) == [id |-> id, rows |-> rows, seq |-> seq]

Idle == [at |-> "off", epoch |-> 0, keys |-> {}, new |-> {}, read |-> {}, found |-> {}, kept |-> {},
         base |-> 0]
NoWork == [at |-> "off", files |-> {}, rows |-> {}, gone |-> {}, base |-> 0]

Init == /\ table = [head |-> 0, files |-> {}, deletes |-> {}, next |-> 1]
        /\ wanted = {} /\ up = Idle /\ co = NoWork /\ step = [action |-> "Init"]
        /\ left = [appends |-> Appends, deletes |-> Deletes, compactions |-> Compactions]

\* ------------------------------------------------------------------ what readers find

\* A delete names a file and a row in it. Without the rule, it names a key, in files that are not newer.
Hits(d, f, r) == IF d.file = 0 THEN d.row.key = r.key /\ f.seq <= d.seq ELSE d.file = f.id /\ d.row = r
Gone(t, f) == {r \in f.rows : \E d \in t.deletes : Hits(d, f, r)}
GoneOf(t, files) == UNION {{<<f.id, r>> : r \in Gone(t, f)} : f \in files}
Live(t) == UNION {{<<f.id, r>> : r \in f.rows \ Gone(t, f)} : f \in t.files}
Ids(files) == {f.id : f \in files}

\* One commit: files and deletes with the next sequence number; without files that have no row left.
Change(t, removed, added, deletes) ==
  LET seq == t.head + 1
      files == {f \in t.files : f \notin removed}
               \cup (IF added = {} THEN {} ELSE {File(t.next, added, seq)})
      named == {[file |-> d[1], row |-> d[2], seq |-> seq] : d \in deletes}
  IN [head |-> seq, files |-> files, next |-> t.next + 1,
      deletes |-> {d \in t.deletes \cup named : d.file = 0 \/ d.file \in Ids(files)}]

\* ------------------------------------------------------------------ epochs

Start(keys, new) ==
  /\ up.at = "off" /\ up.epoch < Epochs /\ keys # {} /\ new \subseteq keys
  /\ up' = [Idle EXCEPT !.at = "plan", !.epoch = up.epoch + 1, !.keys = keys, !.new = new]
  /\ step' = [action |-> "Start", keys |-> keys]
  /\ UNCHANGED <<table, wanted, co, left>>

\* After a lost race, only files that are new to the epoch are read.
Plan ==
  LET new == {f \in table.files : f.id \notin up.read}
      read == IF up.read = {} \/ Rule("newfiles") THEN new ELSE {}
      there == {p \in up.found : p[1] \in Ids(table.files)}
      found == there \cup UNION {{<<f.id, r>> : r \in {r \in f.rows : r.key \in up.keys}} : f \in read}
      \* Of a copy: the other rows of the files that it replaces, as they were when they were read.
      again == IF Rule("copied") THEN table.files ELSE read
      before == IF Rule("copied") THEN {} ELSE {p \in up.kept : p[1] \in Ids(table.files)}
      rows(f) == {r \in f.rows \ Gone(table, f) : r.key \notin up.keys}
      kept == before \cup UNION {{<<f.id, r>> : r \in rows(f)} : f \in again}
  IN /\ up.at = "plan" /\ step' = [action |-> "Plan"]
     /\ up' = [up EXCEPT !.at = "commit", !.read = @ \cup Ids(read), !.found = found,
                         !.kept = IF Copies THEN kept ELSE {}, !.base = table.head]
     /\ UNCHANGED <<table, wanted, co, left>>

Commit ==
  LET born == table.head + 1
      new == {Row(k, born) : k \in up.new}
      gone == GoneOf(table, table.files)
      hit == {f \in table.files : \E p \in up.found : p[1] = f.id}
      whole == {f \in hit : \A r \in f.rows : <<f.id, r>> \in up.found \cup gone}
      copied == {p[2] : p \in {p \in up.kept : p[1] \in Ids(hit)}}
      positions == {p \in up.found \ gone : p[1] \notin Ids(whole)}
      deletes == IF Rule("positions") THEN positions
                 ELSE {<<0, Row(k, born)>> : k \in up.keys}
  IN /\ up.at = "commit" /\ step' = [action |-> "Commit"]
     /\ IF Rule("requirement") /\ up.base # table.head
        THEN up' = [up EXCEPT !.at = "plan"] /\ UNCHANGED <<table, wanted>>
        ELSE /\ table' = IF Copies THEN Change(table, hit, new \cup copied, {})
                         ELSE Change(table, whole, new, deletes)
             /\ wanted' = {r \in wanted : r.key \notin up.keys} \cup new
             /\ up' = [Idle EXCEPT !.epoch = up.epoch]
     /\ UNCHANGED <<co, left>>

\* ------------------------------------------------------------------ a compaction

Choose(files) ==
  /\ co.at = "off" /\ left.compactions > 0 /\ files # {} /\ step' = [action |-> "Choose"]
  /\ co' = [at |-> "commit", files |-> files, gone |-> GoneOf(table, files), base |-> table.head,
            rows |-> UNION {f.rows \ Gone(table, f) : f \in files}]
  /\ left' = [left EXCEPT !.compactions = @ - 1]
  /\ UNCHANGED <<table, wanted, up>>

\* Upon the newest table, if each file is there still, with the same deleted rows.
Replace ==
  LET same == /\ Rule("samefiles") => co.files \subseteq table.files
              /\ Rule("samedeletes") => GoneOf(table, co.files) = co.gone
  IN /\ co.at = "commit" /\ step' = [action |-> "Replace"]
     /\ IF co.base # table.head
        THEN /\ co' = IF same THEN [co EXCEPT !.base = table.head] ELSE NoWork
             /\ UNCHANGED table
        ELSE table' = Change(table, co.files, co.rows, {}) /\ co' = NoWork
     /\ UNCHANGED <<wanted, up, left>>

\* ------------------------------------------------------------------ other programs

Append(key) ==
  LET row == Row(key, table.head + 1) IN
  /\ left.appends > 0 /\ left' = [left EXCEPT !.appends = @ - 1] /\ step' = [action |-> "Append"]
  /\ table' = Change(table, {}, {row}, {}) /\ wanted' = wanted \cup {row}
  /\ UNCHANGED <<up, co>>

Delete(p) ==
  /\ left.deletes > 0 /\ left' = [left EXCEPT !.deletes = @ - 1] /\ step' = [action |-> "Delete"]
  /\ table' = Change(table, {}, {}, {p}) /\ wanted' = wanted \ {p[2]}
  /\ UNCHANGED <<up, co>>

Next ==
  \/ \E keys \in SUBSET Keys : \E new \in SUBSET keys : Start(keys, new)
  \/ Plan \/ Commit \/ Replace
  \/ \E files \in SUBSET table.files : Choose(files)
  \/ \E key \in Keys : Append(key)
  \/ \E p \in Live(table) : Delete(p)

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------ what holds

Exact == {p[2] : p \in Live(table)} = wanted
OnlyOnce == Cardinality(Live(table)) = Cardinality({p[2] : p \in Live(table)})
\* A delete hits rows of earlier commits only: none of the same epoch, and none of a later one.
OnlyEarlier == \A d \in table.deletes, f \in table.files :
                 \A r \in f.rows : Hits(d, f, r) => r.born < d.seq

Symmetric == Permutations(Keys)
===============================================================================
