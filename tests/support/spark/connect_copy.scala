// A client of Spark Connect that is not Python: a stream from topic to topic, as a test tells it.
//
//     ConnectCopy sc://... BOOTSTRAP SOURCE TARGET CHECKPOINT [ROWS]
//
// Watches the stream until it has copied so many rows, or without a number all that there are; then
// stops it, and prints STOPPED with its id, the rows that it told of, and whether it is still active.

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.streaming.StreamingQuery

object ConnectCopy {
  def main(arguments: Array[String]): Unit = {
    val Array(remote, bootstrap, source, target, checkpoint) = arguments.take(5)
    val spark = SparkSession.builder().remote(remote).getOrCreate()
    val kafka = Map("kafka.bootstrap.servers" -> bootstrap)
    val query = spark.readStream
      .format("krishiv-kafka")
      .options(kafka ++ Map("subscribe" -> source, "startingOffsets" -> "earliest"))
      .option("maxOffsetsPerTrigger", "400")
      .load()
      .select("key", "value")
      .writeStream
      .format("krishiv-kafka")
      .options(kafka ++ Map("topic" -> target, "checkpointLocation" -> checkpoint))
      .start()
    arguments.drop(5).headOption match {
      case Some(rows) => while (copied(query) < rows.toLong) Thread.sleep(20)
      case None       => query.processAllAvailable()
    }
    query.stop()
    println(s"STOPPED ${query.id} ${copied(query)} ${query.isActive}")
    spark.close()
  }

  private def copied(query: StreamingQuery): Long = {
    query.exception.foreach(error => throw error)
    query.recentProgress.map(_.numInputRows).sum
  }
}
