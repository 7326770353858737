package checkpoint

// A Cause says why an informer resumes its watch, or lists. As a string it is spelled as its constant, without the word
// Cause. The root package exports all of them, and says what they mean.
type Cause string

// The causes.
const (
	CauseResumed          Cause = "Resumed"
	CauseFirstStart       Cause = "FirstStart"
	CauseOtherCluster     Cause = "OtherCluster"
	CauseOtherIdentity    Cause = "OtherIdentity"
	CauseTransformVersion Cause = "TransformVersion"
	CauseSchemaVersion    Cause = "SchemaVersion"
	CauseIncomplete       Cause = "Incomplete"
	CauseDamaged          Cause = "Damaged"
	CauseNoVersion        Cause = "NoVersion"
	CauseNeverResume      Cause = "NeverResume"
	CauseExpired          Cause = "Expired"
	CauseWatchFailed      Cause = "WatchFailed"
	CauseServerBehind     Cause = "ServerBehind"
	CauseContradiction    Cause = "Contradiction"
	CauseOtherRequest     Cause = "OtherRequest"
	CauseFullRelist       Cause = "FullRelist"
)
