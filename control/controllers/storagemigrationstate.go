package controllers

import (
	"cmp"
	"context"
	"fmt"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apply "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/retry"
)

// maxMigrationMessage limits the errors in conditions, in bytes.
const maxMigrationMessage = 4096

// migrationStep is what to do next for the migrations of a resource.
type migrationStep struct {
	complete []*storagemigrationv1.StorageVersionMigration // have ended, and are marked as running
	run      *storagemigrationv1.StorageVersionMigration   // is running
	start    *storagemigrationv1.StorageVersionMigration   // is next, if none is running
}

// nextMigrationStep decides about the migrations of one resource: the oldest one that has not ended runs, and no other.
func nextMigrationStep(all []*storagemigrationv1.StorageVersionMigration) (step migrationStep) {
	older := func(a, b *storagemigrationv1.StorageVersionMigration) bool {
		return b == nil ||
			cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
	}
	for _, one := range all {
		running := hasMigrationCondition(one, storagemigrationv1.MigrationRunning)
		ended := hasMigrationCondition(one, storagemigrationv1.MigrationSucceeded) ||
			hasMigrationCondition(one, storagemigrationv1.MigrationFailed)
		switch {
		case running && ended:
			step.complete = append(step.complete, one)
		case running && older(one, step.run):
			step.run = one
		case !running && !ended && older(one, step.start):
			step.start = one
		}
	}
	if step.run != nil {
		step.start = nil
	}
	return step
}

func hasMigrationCondition(one *storagemigrationv1.StorageVersionMigration,
	kind storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(one.Status.Conditions, string(kind))
}

// migrationProgress is the number of objects that were written or skipped, and of the others.
type migrationProgress struct{ done, pending int }

func (p migrationProgress) total() int { return p.done + p.pending }

// migrationRunning returns the condition of a running migration. Its messages are upstream's.
func migrationRunning(p migrationProgress, transient error) metav1.Condition {
	message := "The migration is running"
	switch {
	case p.pending > 0:
		message += fmt.Sprintf(", %d/%d objects not yet migrated", p.pending, p.total())
	case p.total() > 0:
		message += fmt.Sprintf(", %d objects verified migrated", p.total())
	}
	if transient != nil {
		message += "; transient error: " + transient.Error()
	}
	return migrationCondition(storagemigrationv1.MigrationRunning, metav1.ConditionTrue, "MigrationRunning", message)
}

func migrationCompleted() metav1.Condition {
	return migrationCondition(storagemigrationv1.MigrationRunning, metav1.ConditionFalse, "MigrationCompleted",
		"Migration completed")
}

func migrationSucceeded() metav1.Condition {
	return migrationCondition(storagemigrationv1.MigrationSucceeded, metav1.ConditionTrue,
		"StorageVersionMigrationSucceeded", "Migration completed")
}

func migrationFailed(message string) metav1.Condition {
	return migrationCondition(storagemigrationv1.MigrationFailed, metav1.ConditionTrue, "StorageVersionMigrationFailed",
		message)
}

func migrationCondition(kind storagemigrationv1.MigrationConditionType, status metav1.ConditionStatus, reason,
	message string) metav1.Condition {
	return metav1.Condition{Type: string(kind), Status: status, Reason: reason,
		Message: message[:min(len(message), maxMigrationMessage)]}
}

// retriable reports whether a write may succeed later.
func retriable(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		utilnet.IsProbableEOF(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}

// definitionChange computes the status of a CustomResourceDefinition from its current state.
type definitionChange func(*apiextensionsv1.CustomResourceDefinition) *apply.
	CustomResourceDefinitionStatusApplyConfiguration

// definitionMigrating marks a definition as being migrated, in its current generation.
func definitionMigrating(migration string) definitionChange {
	return func(crd *apiextensionsv1.CustomResourceDefinition) *apply.CustomResourceDefinitionStatusApplyConfiguration {
		return definitionStatus(crd, apiextensionsv1.ConditionTrue, "MigrationRunning", "Migration "+migration+
			" is running")
	}
}

// definitionMigrated marks a definition as not being migrated. After a success, its objects are stored in the storage
// version only, unless the definition has changed since the migration began.
func definitionMigrated(succeeded bool) definitionChange {
	return func(crd *apiextensionsv1.CustomResourceDefinition) *apply.CustomResourceDefinitionStatusApplyConfiguration {
		if !succeeded {
			return definitionStatus(crd, apiextensionsv1.ConditionFalse, "MigrationFailed", "The migration has failed")
		}
		began := apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating)
		version, err := apihelpers.GetCRDStorageVersion(crd)
		if err != nil || began == nil || began.ObservedGeneration != crd.Generation {
			return definitionStatus(crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded", "The migration has "+
				"succeeded but the stored versions have not been updated due to a generation mismatch")
		}
		return definitionStatus(crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded", "The migration has "+
			"succeeded and the stored versions have been updated").WithStoredVersions(version)
	}
}

func definitionStatus(crd *apiextensionsv1.CustomResourceDefinition, status apiextensionsv1.ConditionStatus, reason,
	message string) *apply.CustomResourceDefinitionStatusApplyConfiguration {
	return apply.CustomResourceDefinitionStatus().WithConditions(apply.CustomResourceDefinitionCondition().
		WithType(apiextensionsv1.StorageMigrating).WithStatus(status).WithReason(reason).WithMessage(message).
		WithLastTransitionTime(metav1.Now()).WithObservedGeneration(crd.Generation))
}

// markDefinition changes the status of the definition of the migrated resource, if it has one.
func (m *storageMigrator) markDefinition(ctx context.Context, one *storagemigrationv1.StorageVersionMigration,
	change definitionChange) error {
	if m.Definitions == nil {
		return nil
	}
	name := resourceOf(one).String()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crd, err := m.Definitions.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err //nolint:wrapcheck // the caller checks the type
		}
		_, err = m.Definitions.ApplyStatus(ctx, apply.CustomResourceDefinition(name).
			WithResourceVersion(crd.ResourceVersion).WithStatus(change(crd)),
			metav1.ApplyOptions{FieldManager: StorageVersionMigrator, Force: true})
		return err //nolint:wrapcheck // the caller checks the type
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("update status of definition %s: %w", name, err)
	}
	return nil
}
