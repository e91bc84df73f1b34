// Requests to the server this page came from. Addresses are relative, so that --api-prefix works.

import { key } from "./store.js";

// status 0: no answer at all
export class ApiError extends Error {
    constructor(status, message, details = {}) {
        super(message);
        this.status  = status;
        this.details = details;
    }
}

async function errorOf(response) {
    let details = {};
    try {
        details = (await response.json()).error || {};
    } catch { /* not JSON: the status must do */ }
    return new ApiError(response.status, String(details.message || response.statusText || "no reason given"), details);
}

export async function request(path, { body, signal } = {}) {
    const headers = {};
    if (key.get()) {
        headers.Authorization = `Bearer ${key.get()}`;
    }
    if (body) {
        headers["Content-Type"] = "application/json";
    }
    let response;
    try {
        response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
    } catch (error) {
        if (signal?.aborted) {
            throw error;
        }
        throw new ApiError(0, "the server does not answer");
    }
    if (!response.ok) {
        throw await errorOf(response);
    }
    return response;
}

export async function getJson(path) {
    const response = await request(path);
    try {
        return await response.json();
    } catch {
        throw new ApiError(0, "the answer was cut off");
    }
}
