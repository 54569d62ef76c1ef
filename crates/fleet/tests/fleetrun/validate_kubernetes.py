"""Checks manifests of `fleetrun k8s` against the schemas of Kubernetes.

A JobSet is no part of Kubernetes itself, so there is no schema of it here: its own few fields are compared with those of
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/, and its Jobs are checked as the Jobs they become.
"""

import sys

import kubernetes_validate
import yaml

VERSION = kubernetes_validate.latest_version()

JOB_SET = {
    "spec": {"network", "successPolicy", "failurePolicy", "replicatedJobs"},
    "network": {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"},
    "successPolicy": {"operator", "targetReplicatedJobs"},
    "failurePolicy": {"maxRestarts", "rules"},
    "rule": {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"},
    "replicatedJob": {"name", "replicas", "template"},
}

# Why a Job fails: https://kubernetes.io/docs/concepts/workloads/controllers/job/
JOB_FAILURES = {
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
}


def known(name, value):
    unknown = set(value) - JOB_SET[name]
    assert not unknown, f"{name} has no {unknown}"


def job_set(document):
    assert document["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    spec = document["spec"]
    known("spec", spec)
    for part in ("network", "successPolicy", "failurePolicy"):
        known(part, spec[part])
    for rule in spec["failurePolicy"].get("rules", []):
        known("rule", rule)
        assert rule["action"] in {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
        assert set(rule["onJobFailureReasons"]) <= JOB_FAILURES
    jobs = spec["replicatedJobs"]
    assert set(spec["successPolicy"]["targetReplicatedJobs"]) <= {job["name"] for job in jobs}
    for job in jobs:
        known("replicatedJob", job)
        metadata = {**job["template"]["metadata"], "name": f"{document['metadata']['name']}-{job['name']}-0"}
        yield {"apiVersion": "batch/v1", "kind": "Job", **job["template"], "metadata": metadata}


def main(paths):
    count = 0
    for path in paths:
        with open(path) as file:
            documents = list(yaml.safe_load_all(file))
        for document in documents:
            parts = job_set(document) if document["kind"] == "JobSet" else [document]
            for part in parts:
                kubernetes_validate.validate(part, VERSION, strict=True)
                count += 1
    print(f"{count} objects are valid")


main(sys.argv[1:])
