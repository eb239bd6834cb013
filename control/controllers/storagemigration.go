package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"
)

const (
	// migrationWorkers is the number of resources that are migrated at once, as upstream.
	migrationWorkers = 5
	// migrationPageSize is the number of objects that are listed at once.
	migrationPageSize = 500
	// migrationDiscovery is how long a migration waits for its resource to be served, as upstream.
	migrationDiscovery = time.Minute
)

// migrationVerbs are the verbs that a resource needs.
var migrationVerbs = []string{"update", "patch", "list"}

// storageMigrator writes all objects of a resource without a change, so that they are stored in the current version and
// with the current encryption key. Its keys are resources. One migration of a resource runs at a time.
type storageMigrator struct {
	Config

	migrations migrationlisters.StorageVersionMigrationLister
}

func newStorageMigrator(c Config) ([]*controller, error) {
	migrations := c.Informers.Storagemigration().V1().StorageVersionMigrations()
	m := &storageMigrator{c, migrations.Lister()}
	ctrl := c.newController(m.sync)
	ctrl.workers = migrationWorkers
	return []*controller{ctrl}, ctrl.watch(migrations.Informer(), func(obj any) []string {
		if one, ok := obj.(*storagemigrationv1.StorageVersionMigration); ok {
			return []string{resourceOf(one).String()}
		}
		return nil
	})
}

func resourceOf(one *storagemigrationv1.StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: one.Spec.Resource.Group, Resource: one.Spec.Resource.Resource}
}

// sync takes the next step for the migrations of one resource.
func (m *storageMigrator) sync(ctx context.Context, key string) (time.Duration, error) {
	all, err := m.migrations.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list storage version migrations: %w", err)
	}
	step := nextMigrationStep(slices.DeleteFunc(all, func(one *storagemigrationv1.StorageVersionMigration) bool {
		return resourceOf(one).String() != key
	}))
	for _, one := range step.complete {
		if err := m.complete(ctx, one.DeepCopy()); err != nil {
			return 0, err
		}
	}
	switch {
	case step.run != nil:
		return m.run(ctx, step.run.DeepCopy())
	case step.start != nil:
		return 0, m.start(ctx, step.start.DeepCopy())
	}
	return 0, nil
}

// start marks a migration as running.
func (m *storageMigrator) start(ctx context.Context, one *storagemigrationv1.StorageVersionMigration) error {
	if err := m.markDefinition(ctx, one, definitionMigrating(one.Name)); err != nil {
		return err
	}
	return m.update(ctx, one, migrationRunning(migrationProgress{}, nil))
}

// complete marks an ended migration as no longer running.
func (m *storageMigrator) complete(ctx context.Context, one *storagemigrationv1.StorageVersionMigration) error {
	if err := m.markDefinition(ctx, one, definitionMigrated(hasMigrationCondition(one,
		storagemigrationv1.MigrationSucceeded))); err != nil {
		return err
	}
	return m.update(ctx, one, migrationCompleted())
}

// run continues a running migration. The first step records the resource version up to which objects are written.
func (m *storageMigrator) run(ctx context.Context,
	one *storagemigrationv1.StorageVersionMigration) (time.Duration, error) {
	of, served, err := m.discover(resourceOf(one))
	switch {
	case err != nil:
		return 0, err
	case of == nil && time.Since(one.CreationTimestamp.Time) < migrationDiscovery:
		return time.Second, nil
	case of == nil:
		return 0, m.update(ctx, one, migrationFailed("resource does not exist in discovery"))
	case !served:
		return 0, m.update(ctx, one, migrationFailed(fmt.Sprintf(
			"resource %q does not support discovery operations: %v", of.String(), migrationVerbs)))
	}
	if one.Status.ResourceVersion == "" {
		list, err := m.Metadata.Resource(*of).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return 0, fmt.Errorf("list %s: %w", of, err)
		}
		one.Status.ResourceVersion = list.ResourceVersion
		return 0, m.update(ctx, one)
	}
	return 0, m.migrate(ctx, one, *of)
}

// discover returns a resource in the preferred version that serves it, and whether it can be migrated. It returns nil
// for a resource that is not served.
func (m *storageMigrator) discover(want schema.GroupResource) (of *schema.GroupVersionResource, ok bool, err error) {
	groups, err := m.Client.Discovery().ServerGroups()
	if err != nil {
		return nil, false, fmt.Errorf("discover groups: %w", err)
	}
	for _, g := range groups.Groups {
		if g.Name != want.Group {
			continue
		}
		for _, v := range append([]metav1.GroupVersionForDiscovery{g.PreferredVersion}, g.Versions...) {
			list, err := m.Client.Discovery().ServerResourcesForGroupVersion(v.GroupVersion)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, false, fmt.Errorf("discover resources of %s: %w", v.GroupVersion, err)
			}
			for i := range list.APIResources {
				if r := &list.APIResources[i]; r.Name == want.Resource {
					found := want.WithVersion(v.Version)
					return &found, !slices.ContainsFunc(migrationVerbs, func(verb string) bool {
						return !slices.Contains(r.Verbs, verb)
					}), nil
				}
			}
		}
	}
	return nil, false, nil
}

// migrate writes all objects that have not been written since the migration began. After an error it begins again with
// the first page and skips those that it has written.
func (m *storageMigrator) migrate(ctx context.Context, one *storagemigrationv1.StorageVersionMigration,
	of schema.GroupVersionResource) error {
	client, options := m.Metadata.Resource(of), metav1.ListOptions{Limit: migrationPageSize}
	var progress migrationProgress
	for {
		page, err := client.List(ctx, options)
		if err != nil {
			return m.interrupted(ctx, one, progress, fmt.Errorf("list %s: %w", of.GroupResource(), err))
		}
		for i := range page.Items {
			progress.pending = len(page.Items) - i
			if page.RemainingItemCount != nil {
				progress.pending += int(*page.RemainingItemCount)
			}
			err := writeUnchanged(ctx, client, &page.Items[i], one.Status.ResourceVersion)
			switch {
			case err == nil:
			case retriable(err):
				return m.interrupted(ctx, one, progress, err)
			default:
				m.Log.Warn("storage version migration failed", "migration", one.Name, "object",
					page.Items[i].Namespace+"/"+page.Items[i].Name, "err", err)
				return m.update(ctx, one, migrationRunning(progress, nil), migrationFailed(fmt.Sprintf(
					"%d/%d not yet migrated. migration encountered unhandled error: %s", progress.pending,
					progress.total(), err)))
			}
			progress.done++
		}
		progress.pending = 0
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
		if _, err := m.migrations.Get(one.Name); err != nil {
			return ignoreNotFound(err) // deleted meanwhile
		}
	}
	m.Log.Info("storage version migration succeeded", "migration", one.Name, "resource", of.GroupResource(),
		"objects", progress.done)
	return m.update(ctx, one, migrationRunning(progress, nil), migrationSucceeded())
}

// writeUnchanged writes an object if it is not newer than a resource version. It is no error if the object has changed
// or is gone: who has changed it has written it in the current storage version.
func writeUnchanged(ctx context.Context, client metadata.Getter, object *metav1.PartialObjectMetadata,
	until string) error {
	order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, until)
	if err != nil || order > 0 {
		return err //nolint:wrapcheck // names the version
	}
	patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q}}`, object.ResourceVersion)
	_, err = client.Namespace(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: StorageVersionMigrator})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err //nolint:wrapcheck // the message goes into the status
}

// interrupted records an error after which the migration is tried again.
func (m *storageMigrator) interrupted(ctx context.Context, one *storagemigrationv1.StorageVersionMigration,
	progress migrationProgress, err error) error {
	if updateErr := m.update(ctx, one, migrationRunning(progress, err)); updateErr != nil {
		m.Log.Debug("progress of storage version migration not recorded", "migration", one.Name, "err", updateErr)
	}
	return err
}

// update writes the status with changed conditions.
func (m *storageMigrator) update(ctx context.Context, one *storagemigrationv1.StorageVersionMigration,
	conditions ...metav1.Condition) error {
	for _, c := range conditions {
		c.ObservedGeneration = one.Generation
		meta.SetStatusCondition(&one.Status.Conditions, c)
	}
	_, err := m.Client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, one, metav1.UpdateOptions{})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("update status of storage version migration %s: %w", one.Name, err)
	}
	return nil
}
