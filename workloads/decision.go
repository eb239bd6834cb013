package workloads

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Decision is what an object needs next. S is the type of its status.
type Decision[S any] struct {
	Writes []Write
	// Status is the status to write after Writes. Nil: the observed one stays.
	Status *S
	// Annotations are set on the object by the write of Status, through the status subresource: that write does not
	// change metadata.generation. Only the revision of a Deployment needs it. Status is not nil then.
	Annotations map[string]string
	// Events are recorded for the object after Writes succeeded.
	Events []Event
	// Wake is when to decide again although no observed object changes. Zero: not needed.
	Wake time.Time
}

// Object is an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// Verb is the kind of a write.
type Verb int

// The verbs.
const (
	// Create creates Object. If an object of its name exists, the write fails with AlreadyExists.
	Create Verb = iota + 1
	// Update replaces the object by Object, which has the observed resource version. A conflict fails the write.
	Update
	// Patch changes the fields in which Object differs from Base, if the object still has the UID of Base.
	Patch
	// Delete deletes Object, if it still has the UID.
	Delete
)

// Write is one change of an object through the API.
type Write struct {
	Verb   Verb
	Object Object
	Base   Object // only Patch: the observed object
	// IfUnchanged makes a Patch fail with a conflict if the object has changed since Base was observed.
	IfUnchanged bool
	// VerifyOwner makes the executor read the decided object from the API first: the write fails if it no longer
	// exists with this UID or is being deleted. Adoptions need it, because the observation may be old.
	VerifyOwner bool
	// Propagation is what a Delete does with dependents. Empty: the default of the API for the type.
	Propagation metav1.DeletionPropagation
	// Success and Failure are recorded for the decided object after the write. "%s" in their messages is replaced by
	// the name of the written object or the error. An empty reason: no event. AlreadyExists is not recorded, as
	// upstream: the next decision deals with the object that has the name.
	Success, Failure Event
}

// Event is an event to record for the decided object.
type Event struct {
	Type    string // corev1.EventTypeNormal or corev1.EventTypeWarning
	Reason  string
	Message string
}

// ErrTruncated is the error of the first write that one sync has not executed, because the sync has created or deleted
// as many objects as it may. It is no failure: the next sync continues.
var ErrTruncated = errors.New("burst limit reached")

// WriteError is the failure of a write.
type WriteError struct {
	Write Write
	Err   error
}

func (e *WriteError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the API.
func (e *WriteError) Unwrap() error { return e.Err }

// String returns the verb in lower case.
func (v Verb) String() string {
	switch v {
	case Create:
		return "create"
	case Update:
		return "update"
	case Patch:
		return "patch"
	case Delete:
		return "delete"
	}
	return "unknown"
}
