package validation

import (
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// migration validates a StorageVersionMigration.
func (k *validator) migration(m *storagemigrationv1.StorageVersionMigration) {
	at, of := spec.Child("resource"), m.Spec.Resource
	if of.Resource == "" {
		k.Required(at.Child("resource"), "resource is required to be set")
	} else {
		k.InvalidEach(at.Child("resource"), of.Resource, validation.IsDNS1035Label(of.Resource))
	}
	if of.Group != "" {
		k.InvalidEach(at.Child("group"), of.Group, validation.IsDNS1123Subdomain(of.Group))
	}
}

// migrationStatus validates an update of the status. A migration ends once, as succeeded or failed.
func (k *validator) migrationStatus(m, old *storagemigrationv1.StorageVersionMigration) {
	version, list := m.Status.ResourceVersion, status.Child("conditions")
	if _, err := resourceversion.CompareResourceVersion(version, version); err != nil && version != "" {
		k.Invalid(status.Child("resourceVersion"), version, "%s", err)
	}
	if before := old.Status.ResourceVersion; before != "" && before != version {
		k.Invalid(status.Child("resourceVersion"), version, "field is immutable")
	}
	k.AddAll(metavalidation.ValidateConditions(m.Status.Conditions, list))
	is := func(m *storagemigrationv1.StorageVersionMigration, kind storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(kind))
	}
	succeeded, failed := is(m, storagemigrationv1.MigrationSucceeded), is(m, storagemigrationv1.MigrationFailed)
	require := func(ok bool, message string) {
		if !ok {
			k.Invalid(list, field.OmitValueType{}, "%s", message)
		}
	}
	require(!succeeded || !failed, "Both success and failed conditions cannot be true at the same time")
	require(succeeded || !is(old, storagemigrationv1.MigrationSucceeded),
		"Success condition cannot be set to false once it is true")
	require(failed || !is(old, storagemigrationv1.MigrationFailed),
		"Failed condition cannot be set to false once it is true")
}
